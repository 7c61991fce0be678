"""Jobs, evaluations and policies in a notebook: plain HTML, with curves as inline SVG.

Pure functions from figures to text. All external text is escaped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}figure{display:inline-block;margin:.5em}"
    "th,td{border:1px solid #ddd;padding:.25em .6em;text-align:left;vertical-align:top}"
    "th{background:#f6f6f6}code,pre{font-size:13px}pre{overflow:auto;background:#f6f6f6;padding:.8em}"
    "dd pre{white-space:pre-wrap}"
)
_WIDTH, _HEIGHT, _MARGIN = 480, 120, 4
_MOST_POINTS = 240
_BARS = 20


def card(title: str, rows: Mapping[str, object], *, picture: str = "", folded: str = "") -> str:
    """Return HTML with a title, a table of names and values, a picture, and an expandable text."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    text = f"<details><summary>one episode</summary><pre>{escape(folded)}</pre></details>" if folded else ""
    return f"<div><b>{escape(title)}</b><table>{lines}</table>{picture}{text}</div>"


def document(title: str, body: str) -> str:
    """Return a page that runs no script and loads nothing, which its content policy states."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; empty if it has no rows."""
    if not rows:
        return ""
    header = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{lines}</table>"


def curve(values: Sequence[float], name: str, marks: Mapping[int, str] | None = None) -> str:
    """Draw values from left to right; neighbours are averaged if there are too many.

    Args:
        values: In order.
        name: For the caption.
        marks: Texts for dashed lines before some of the values, by index; shown as tooltips.
    """
    shown = condense(values, _MOST_POINTS)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    wide, tall = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    points = " ".join(
        f"{_MARGIN + wide * index / max(1, len(shown) - 1):.1f},"
        f"{_MARGIN + tall * (1 - (value - low) / ((high - low) or 1.0)):.1f}"
        for index, value in enumerate(shown)
    )
    drawn = f"<polyline points='{points}' fill='none' stroke='#2a7' stroke-width='2'/>"
    for place, words in (marks or {}).items():
        x = _MARGIN + wide * place / max(1, len(values) - 1)
        drawn += (
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{_HEIGHT}' stroke='#999' stroke-dasharray='4 3'>"
            f"<title>{escape(words)}</title></line>"
        )
    return _picture(drawn, f"{name}: {low:.3g} to {high:.3g}, last {values[-1]:.3g}")


def histogram(values: Sequence[float], name: str) -> str:
    """Draw a histogram of values."""
    if not values:
        return ""
    low, high = min(values), max(values)
    edges = [low + (high - low) * index / _BARS for index in range(_BARS + 1)]
    counts = [sum(a <= value < b for value in values) for a, b in pairwise(edges)]
    counts[-1] += sum(value == high for value in values)
    wide, tall, most = (_WIDTH - 2 * _MARGIN) / _BARS, _HEIGHT - 2 * _MARGIN, max(counts)
    bars = "".join(
        f"<rect x='{_MARGIN + index * wide:.1f}' y='{_MARGIN + tall * (1 - count / most):.1f}' "
        f"width='{wide - 1:.1f}' height='{tall * count / most:.1f}' fill='#2a7'/>"
        for index, count in enumerate(counts)
        if count
    )
    return _picture(bars, f"{name}: {low:.3g} to {high:.3g}")


def _picture(drawn: str, caption: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'><title>{escape(caption)}</title>"
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='none' stroke='#ccc'/>{drawn}</svg>"
        f"<br/><small>{escape(caption)}</small>"
    )


def condense(values: Sequence[float], columns: int) -> list[float]:
    """Average neighbours so that at most `columns` values remain."""
    count = min(columns, len(values))
    edges = [index * len(values) // count for index in range(count)] + [len(values)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
