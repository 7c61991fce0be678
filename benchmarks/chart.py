"""Draw `benchmarks/results/figures.png`: by what factor each figure exceeds its goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

CHART = RESULTS / "figures.png"
_MOST_SHOWN = 8.0
"""Longer bars are cut here: parity is better by orders of magnitude, and would hide the rest."""


def draw(names: list[str], path: Path = CHART, results: Path = RESULTS) -> Path | None:
    """Draw the figures of the named result files that have a margin; None if there are none.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figures = [
        figure
        for name in names
        for figure in _figures(results / f"{name}.json")
        if figure.get("margin") is not None
    ]
    if not figures:
        return None
    figures.reverse()  # matplotlib counts from below
    canvas, axes = plt.subplots(figsize=(11, 0.8 + 0.45 * len(figures)))
    places = range(len(figures))
    margins = [figure["margin"] for figure in figures]
    axes.barh(
        places,
        [min(margin, _MOST_SHOWN) for margin in margins],
        color=["#2a7f62" if margin >= 1 else "#c0392b" for margin in margins],
        height=0.6,
    )
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(places, [figure["what"] for figure in figures], fontsize=8)
    for place, figure in zip(places, figures, strict=True):
        text = f"{figure['measured'].partition(' (')[0]}, goal {figure['asked']}"
        axes.text(min(figure["margin"], _MOST_SHOWN) + 0.05, place, text, va="center", fontsize=7)
    axes.set_xlim(0, 1.6 * min(max(margins), _MOST_SHOWN))
    axes.set_xlabel("better than the goal by this factor")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    canvas.tight_layout()
    # No date inside, so that equal figures give an equal file.
    canvas.savefig(path, dpi=110, metadata={"Software": ""})
    plt.close(canvas)
    return path


def _figures(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["figures"] if path.is_file() else []
