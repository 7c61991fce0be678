"""The learning curves of a recipe's runs, as data and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Evaluated = tuple[int, float, float | None, float | None]
"""Train step, mean return, and its 95 % interval; no interval for a single episode."""


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
    evaluations: Sequence[Evaluated]
    """Evaluations of held-out episodes."""
    variant: str = ""
    """The table of overrides that was used, such as `swapped`."""
    metric: str = ""
    metrics: Sequence[tuple[int, float]] = ()
    """The curve of `metric`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seat_rewards: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """As `rewards`, by trained seat of a game."""

    def as_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Run:
        """Return a run from `as_json`."""
        return cls(**{name: stored[name] for name in cls.__dataclass_fields__ if name in stored})


def draw(runs: Sequence[Run], path: Path) -> str:
    """Draw held-out returns with their intervals over train steps, controls in grey.

    Returns:
        A line with the picture's path; empty if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        color = "tab:gray" if run.control else "tab:olive" if run.variant else f"C{number}"
        label = ", ".join(
            [*filter(None, ["control" if run.control else "", run.variant]), f"seed {run.seed}"]
        )
        if not run.evaluations:
            axes.plot(*zip(*run.rewards, strict=True), color=color, label=label) if run.rewards else None
            for agent, rewards in run.seat_rewards.items():
                axes.plot(*zip(*rewards, strict=True), label=f"{label}, {agent}")
            continue
        steps = [step for step, *_ in run.evaluations]
        means = [mean for _, mean, *_ in run.evaluations]
        lows = [mean if low is None else low for _, mean, low, _ in run.evaluations]
        highs = [mean if high is None else high for _, mean, _, high in run.evaluations]
        axes.plot(steps, means, color=color, marker="o", markersize=3, label=label)
        axes.fill_between(steps, lows, highs, color=color, alpha=0.15, linewidth=0)
    axes.set(title=runs[0].recipe, xlabel="train step", ylabel="mean return, held-out episodes")
    axes.grid(alpha=0.3)
    if len(runs) > 1:
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"picture     {path}\n"
