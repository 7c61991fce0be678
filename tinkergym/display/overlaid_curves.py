"""Several curves on one axis, in characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_ROWS, _COLUMNS = 12, 64


def overlaid(
    curves: Sequence[Sequence[tuple[int, float]]], marks: str, *, rows: int = _ROWS, columns: int = _COLUMNS
) -> list[str]:
    """Draw curves of (step, value), each with its own mark; `*` stands where several meet.

    Points that share a column are averaged, and columns between two points are filled along the line.
    """
    points = [point for curve in curves for point in curve]
    if not points:
        return ["no train steps"]
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    shown = [_by_column(curve, first, last, columns) for curve in curves]
    heights = [value for one in shown for value in one.values()]
    low, high = min(heights), max(heights)
    grid = [[" "] * columns for _ in range(rows)]
    for mark, one in zip(marks, shown, strict=False):
        for column, value in one.items():
            row = round((high - value) / ((high - low) or 1.0) * (rows - 1))
            grid[row][column] = mark if grid[row][column] in (" ", mark) else "*"
    labels = {0: f"{high:+.3g}", rows - 1: f"{low:+.3g}"}
    lines = [f"{labels.get(row, ''):>9} ┤{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    return [*lines, f"{'':9} └{f'step {first}':{columns - 9}}{last:>9}"]


def _by_column(curve: Sequence[tuple[int, float]], first: int, last: int, columns: int) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for step, value in curve:
        found.setdefault(round((step - first) / ((last - first) or 1) * (columns - 1)), []).append(value)
    means = {column: sum(values) / len(values) for column, values in sorted(found.items())}
    known = list(means)
    for before, after in pairwise(known):
        for column in range(before + 1, after):
            share = (column - before) / (after - before)
            means[column] = means[before] + share * (means[after] - means[before])
    return means
