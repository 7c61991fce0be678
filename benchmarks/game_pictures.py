"""`python -m benchmarks.game_pictures`: draw the learning curves of games from the result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

IMAGES = Path(__file__).parent.parent / "docs" / "images"
Curves = dict[str, tuple[list[float], list[float]]]
"""The labels of the two axes, by name."""
_WINDOW = 10
"""Number of steps in a reward's moving average."""


def main() -> None:
    """Draw every picture whose result file exists."""
    for name, curves_of in (
        ("two_agents", _two_agents),
        ("cooperative", _cooperative),
        ("kuhn", _kuhn),
        ("self_play", _self_play),
    ):
        path = RESULTS / f"{name}.json"
        if path.is_file():
            panels, y_label = curves_of(json.loads(path.read_text())["details"])
            print(_drawn(f"{name}.png", panels, y_label))


def _two_agents(details: dict[str, Any]) -> tuple[dict[str, Curves], str]:
    games = {name: one for name, one in details.items() if isinstance(one, dict)}
    return {
        game: {agent: _smooth(curve) for agent, curve in one.items() if isinstance(curve, list)}
        for game, one in games.items()
    }, f"reward, mean of {_WINDOW} steps"


def _cooperative(details: dict[str, Any]) -> tuple[dict[str, Curves], str]:
    teams = {name: one for name, one in details.items() if isinstance(one, dict)}
    return {
        "tabletop/Signals-v0": {name: _smooth(one["curve"]) for name, one in teams.items()}
    }, f"team reward, mean of {_WINDOW} steps"


def _kuhn(details: dict[str, Any]) -> tuple[dict[str, Curves], str]:
    curves = {
        name: (details["versions"], details[key])
        for name, key in (
            ("newest version", "exploitability"),
            ("average of the versions", "average_strategy"),
        )
        if key in details
    }
    return {"tabletop/KuhnPoker-v0": curves}, "exact exploitability, chips per game"


def _self_play(details: dict[str, Any]) -> tuple[dict[str, Curves], str]:
    every = details["every"]
    return {
        name: {
            f"seed {seed}": ([every * number for number in range(len(scores))], scores)
            for seed, scores in enumerate(several)
        }
        for name, several in details["curves"].items()
    }, "score against random"


def _smooth(curve: list[float]) -> tuple[list[float], list[float]]:
    means = [
        sum(curve[max(0, end - _WINDOW) : end]) / (end - max(0, end - _WINDOW))
        for end in range(1, len(curve) + 1)
    ]
    return list(map(float, range(1, len(curve) + 1))), means


def _drawn(file: str, panels: dict[str, Curves], y_label: str) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 3.2), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, (steps, values) in curves.items():
            axis.plot(steps, values, label=name)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("train step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0][0].set_ylabel(y_label)
    path = IMAGES / file
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
