"""Pictures of cross-play and ratings, as PNG. The only module here that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tinkergym.basics.extras import import_extra
from tinkergym.schema.ids import PolicyRef

_BLUE = "#1f6feb"


class _Cell(Protocol):
    @property
    def mean_return(self) -> float: ...
    @property
    def forfeits_won(self) -> int: ...
    @property
    def forfeits_lost(self) -> int: ...


class _Rating(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def rating(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def step(self) -> int | None: ...


def draw_crossplay(
    path: Path, game: str, names: Sequence[str], cells: Sequence[Sequence[_Cell | None]]
) -> Path:
    """Draw the matrix: mean return of the row's player, and forfeited games."""
    size = max(4.0, 1.1 * len(names) + 2)
    figure, axes = _figure(size, size * 0.85)
    values = [[math.nan if one is None else one.mean_return for one in line] for line in cells]
    largest = max((abs(v) for line in values for v in line if not math.isnan(v)), default=1.0) or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest)
    for y, line in enumerate(cells):
        for x, cell in enumerate(line):
            if cell is None:
                continue
            dark = abs(cell.mean_return) > 0.6 * largest
            forfeits = cell.forfeits_won + cell.forfeits_lost
            text = f"{cell.mean_return:+.2f}" + (f"\n{forfeits} forfeits" if forfeits else "")
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_title(f"{game}: mean return of the row against the column", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return _saved(figure, path)


def draw_ratings(path: Path, ratings: Sequence[_Rating], versions: Sequence[_Rating], anchor: str) -> Path:
    """Draw ratings with their intervals, over train steps if there are two or more versions.

    An open end of an interval is drawn as an arrow head at the edge.
    """
    edges = _edges(ratings)
    if len({one.step for one in versions}) < 2:
        return _draw_bars(ratings, edges, anchor, path)
    figure, axes = _figure(6.4, 4.0)
    for policy in dict.fromkeys(_policy(one.name) for one in versions):
        own = [one for one in versions if _policy(one.name) == policy]
        steps = [one.step for one in own]
        [line] = axes.plot(steps, [one.rating for one in own], marker="o", label=policy)
        lows, highs = zip(*(_drawn(one, edges) for one in own), strict=True)
        axes.fill_between(steps, lows, highs, alpha=0.2)
        for marker, place, end in (("^", edges[1], "high"), ("v", edges[0], "low")):
            open_at = [one.step for one in own if math.isinf(getattr(one, end))]
            axes.plot(open_at, [place] * len(open_at), marker, color=line.get_color(), clip_on=False)
    for other in ratings:
        if other.step is None:
            axes.axhline(other.rating, linestyle="--", linewidth=1, color="grey")
            axes.annotate(other.name, (0.01, other.rating), xycoords=("axes fraction", "data"), fontsize=8)
    axes.set_xlabel("train step")
    axes.set_ylabel(_scale(anchor))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return _saved(figure, path)


def draw_lines(
    path: Path,
    steps: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    *,
    levels: Mapping[str, float],
    label: str,
    title: str,
) -> Path:
    """Draw figures over train steps, such as an exploitability, and levels that have no step."""
    figure, axes = _figure(6.4, 4.0)
    for name, values in lines.items():
        axes.plot(steps, values, marker="o", label=name)
    for name, value in levels.items():
        axes.axhline(value, linestyle="--", linewidth=1, color="grey")
        axes.annotate(name, (0.01, value), xycoords=("axes fraction", "data"), fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("train step")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return _saved(figure, path)


def draw_bars(path: Path, values: Mapping[str, float], *, label: str, title: str) -> Path:
    """Draw one figure of each of several players."""
    figure, axes = _figure(6.4, 0.45 * len(values) + 1.5)
    axes.barh(list(values), list(values.values()), color=_BLUE)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    return _saved(figure, path)


def _policy(name: str) -> str:
    """Return a policy's name without the version."""
    ref = PolicyRef.find(name)
    return name if ref is None else ref.whose


def _edges(ratings: Sequence[_Rating]) -> tuple[float, float]:
    """Return where open ends are drawn: beyond every rating and finite end."""
    ends = [end for one in ratings for end in (one.low, one.rating, one.high) if math.isfinite(end)]
    beyond = 0.1 * ((max(ends) - min(ends)) or 100.0)
    return min(ends) - beyond, max(ends) + beyond


def _drawn(one: _Rating, edges: tuple[float, float]) -> tuple[float, float]:
    return max(one.low, edges[0]), min(one.high, edges[1])


def _draw_bars(ratings: Sequence[_Rating], edges: tuple[float, float], anchor: str, path: Path) -> Path:
    figure, axes = _figure(6.4, 0.45 * len(ratings) + 1.5)
    worst_first = list(reversed(ratings))
    for row, one in enumerate(worst_first):
        low, high = _drawn(one, edges)
        spread = [[one.rating - low], [high - one.rating]]
        axes.errorbar(one.rating, row, xerr=spread, fmt="o", color=_BLUE, capsize=3)
        for marker, end, place in (("<", one.low, low), (">", one.high, high)):
            if math.isinf(end):
                axes.plot(place, row, marker, color=_BLUE)
    axes.set_yticks(range(len(worst_first)), [one.name for one in worst_first], fontsize=8)
    axes.set_xlabel(_scale(anchor))
    axes.grid(alpha=0.3)
    return _saved(figure, path)


def _scale(anchor: str) -> str:
    return f"Elo points ({anchor} = 0)" if anchor else "Elo points (mean = 0)"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    matplotlib = import_extra("matplotlib.figure", "pictures need matplotlib", extra="plot")
    figure = matplotlib.Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _saved(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")
    return path
