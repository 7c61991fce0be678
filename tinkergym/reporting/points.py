"""Points: the metrics of one train step, under the names that trackers show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinkergym.schema.events import Event, JobState, StateEvent, StepEvent, UpdateEvent
from tinkergym.schema.ids import AgentMetric

_NAMES = {
    "clip_fraction": "clip_ratio/region_mean",
    "clip_low_fraction": "clip_ratio/low_mean",
    "clip_high_fraction": "clip_ratio/high_mean",
    "truncated_fraction": "completions/clipped_ratio",
    "sampled_entropy": "entropy",
    "logprob_gap_mean": "sampling/sampling_logp_difference/mean",
    "logprob_gap_max": "sampling/sampling_logp_difference/max",
}
"""Our metrics that TRL's trainers report with the same meaning; others keep their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The metrics of one train step."""

    step: int
    """Counts from 1."""
    time: float
    """When the step was done, in Unix seconds, by the service's clock."""
    values: dict[str, float]
    """By name. Metrics with the same meaning as in TRL's trainers have TRL's names."""


def point_of(step: StepEvent, time: float) -> Point:
    """Return a train step's metrics; unmeasured ones are left out."""
    found: dict[str, float | None] = {
        "loss": step.loss,
        "reward": step.reward_mean,
        "reward_std": step.reward_std,
        "step_time": step.step_seconds,
        "tokens_per_second": step.tokens_per_second,
        "time/sampling": step.sampling_seconds,
        "time/learning": step.learning_seconds,
        "policy_version": step.policy_version,
        "trained_tokens": step.trained_tokens,
    }
    if step.records is None:
        found |= {
            "episodes": step.episodes,
            "failed_episodes": step.failed_episodes,
            "sampled_tokens": step.sampled_tokens,
            "turns": step.turns,
        }
    silent = step.by_policy("zero_variance_groups")
    for agent, compared in step.by_policy("compared_groups").items():
        if compared and agent in silent:
            name = AgentMetric("policy" if agent else "", agent, "frac_reward_zero_std")
            found[str(name)] = silent[agent] / compared
    found |= {_renamed(name): value for name, value in step.metrics.items()}
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Point(step=step.step, time=time, values=values)


def _renamed(name: str) -> str:
    """Return a metric's name for trackers, the same for each policy."""
    own = AgentMetric.parse(name)
    return name if own.kind == "seat" else str(replace(own, name=_NAMES.get(own.name, own.name)))


class Happenings:
    """What was done to a job between its steps, as values of the next step's point: so every tracker has it.

    `update/NAME` is the new value of a changed setting, at the first step it applies to;
    `paused_seconds` is how long the job was paused before the step.
    """

    def __init__(self) -> None:
        self._changed: dict[int, dict[str, float]] = {}
        self._paused_at: float | None = None
        self._paused_seconds = 0.0

    def note(self, event: Event) -> None:
        """Process one event of the job's log, in order."""
        body = event.body
        if isinstance(body, UpdateEvent) and body.from_step is not None:
            numbers = {
                f"update/{change.name}": float(change.new)
                for change in body.changes
                if isinstance(change.new, int | float)
            }
            self._changed.setdefault(body.from_step, {}).update(numbers)
        elif isinstance(body, StateEvent):
            if self._paused_at is not None:
                self._paused_seconds += event.time - self._paused_at
            self._paused_at = event.time if body.state is JobState.PAUSED else None

    def added_to(self, point: Point) -> Point:
        """Return a point with the changes before it."""
        added = self._changed.get(point.step, {})
        if self._paused_seconds:
            added = {**added, "paused_seconds": self._paused_seconds}
            self._paused_seconds = 0.0
        return replace(point, values={**point.values, **added})
