"""The learning curves of a recipe's runs, as data and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Evaluated = tuple[int, float, float | None, float | None]
"""Train step, mean return, and its 95 % interval; no interval for a single episode."""

_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of one run."""

    recipe: str
    seed: int
    control: bool
    seconds: float
    """Seconds from the script's start to its report."""
    rewards: Sequence[tuple[int, float]]
    """Train step and mean return of its episodes; empty for a game with several trained seats."""
    evaluations: Mapping[str, Sequence[Evaluated]]
    """Evaluations of held-out episodes, by name."""
    settings: str = ""
    """The settings file without its suffix, such as `laptop`; empty in old results."""
    short: bool = False
    variant: str = ""
    """The table of overrides that was used, such as `swapped`."""
    metrics: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Curves of metrics of the train steps, by name."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seat_rewards: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """As `rewards`, by trained seat of a game."""

    def as_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Run:
        """Return a run from `as_json`, or from an old result, which has one evaluation and one metric."""
        given = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        if not isinstance(given["evaluations"], Mapping):
            given["evaluations"] = {"": given["evaluations"]} if given["evaluations"] else {}
        if not isinstance(given.get("metrics", {}), Mapping):
            given["metrics"] = {stored["metric"]: given["metrics"]} if given["metrics"] else {}
        return cls(**given)


def draw(runs: Sequence[Run], path: Path) -> str:
    """Draw held-out returns with intervals over train steps, and metrics below them; controls in grey.

    Returns:
        A line with the picture's path; empty if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    metrics = list(dict.fromkeys(name for run in runs for name, values in run.metrics.items() if values))
    figure = Figure(figsize=(7, 4 + 2 * len(metrics)), layout="constrained")
    heights = [2, *(1 for _ in metrics)]
    returns, *panels = figure.subplots(1 + len(metrics), squeeze=False, height_ratios=heights)[:, 0]
    for number, run in enumerate(runs):
        color = "tab:gray" if run.control else "tab:olive" if run.variant else f"C{number}"
        _draw_returns(returns, run, color)
        for axes, name in zip(panels, metrics, strict=True):
            if run.metrics.get(name):
                axes.plot(*zip(*run.metrics[name], strict=True), color=color)
    returns.set(title=runs[0].recipe, ylabel="mean return, held-out episodes")
    for axes, name in zip(panels, metrics, strict=True):
        axes.set(ylabel=name)
    for axes in (returns, *panels):
        axes.grid(alpha=0.3)
    (returns, *panels)[-1].set(xlabel="train step")
    if len(returns.get_lines()) > 1:
        returns.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"picture     {path}\n"


def _draw_returns(axes: Any, run: Run, color: str) -> None:
    """Draw a run's evaluations, a line style for each name; its train steps' rewards if it has none."""
    label = ", ".join([*filter(None, ["control" if run.control else "", run.variant]), f"seed {run.seed}"])
    if not run.evaluations:
        axes.plot(*zip(*run.rewards, strict=True), color=color, label=label) if run.rewards else None
        for agent, rewards in run.seat_rewards.items():
            axes.plot(*zip(*rewards, strict=True), label=f"{label}, {agent}")
    for number, (name, evaluations) in enumerate(run.evaluations.items()):
        steps = [step for step, *_ in evaluations]
        means = [mean for _, mean, *_ in evaluations]
        # No band where an interval is unknown.
        lows = [math.nan if low is None else low for *_, low, _ in evaluations]
        highs = [math.nan if high is None else high for *_, high in evaluations]
        axes.plot(
            steps,
            means,
            color=color,
            linestyle=_LINES[number % len(_LINES)],
            marker="o",
            markersize=3,
            label=f"{label}, {name}" if len(run.evaluations) > 1 else label,
        )
        axes.fill_between(steps, lows, highs, color=color, alpha=0.15, linewidth=0)
