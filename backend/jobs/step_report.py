"""What a finished step reports: metrics, also per environment, an episode to read, and failures. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from backend.episodes.played import Played, is_lost, trained_seats
from tinkergym.errors import TooManyFailedEpisodesError
from tinkergym.schema.events import MOST_METRICS_OF_STEP, EpisodeEvent, StepEvent, WarningEvent
from tinkergym.schema.ids import AgentMetric
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.trajectory import (
    REASON_COMES_FIRST,
    StopReason,
    Trajectory,
    reason_line,
)

_WARNINGS_PER_STEP = 5
_LONGEST_TEXT = 4000
"""Characters of a traceback or of one message of a transcript in an event."""

MOST_METRICS_OF_LOOP = MOST_METRICS_OF_STEP - 2
"""The journal adds the job's usage so far: its hours and tokens."""
MOST_STEP_METRICS = 200
"""Environment metrics in one step's event; those of the most episodes are kept, the others counted."""


_FIX_THE_ENVIRONMENT = "fix the environment (the warnings have tracebacks) or raise max_failed_fraction"
_WHAT_TO_DO = {
    StopReason.ENVIRONMENT_TIMEOUT.value: (
        "raise limits.step_timeout_seconds, or fix the environment (the warnings have its location), or "
        "raise max_failed_fraction"
    ),
    StopReason.SAMPLING_FAILED.value: ("sampling fails, not the environment; the warnings have its messages"),
}
"""Hints by the most frequent failure of a step's episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStatistics:
    """Counts of a step's episodes; means are over the completed ones."""

    episodes: int
    failed_episodes: int
    reward_mean: float | None
    reward_std: float | None
    """Both None if no episode was completed, because a failure is not a reward of 0, and if several seats are
    trained, because seats are not averaged."""
    seat_metrics: dict[str, float]
    """`seat/<agent>/reward_mean` and so on, if several seats are trained."""
    stop_reasons: dict[str, int]
    """For each trained seat."""
    sampled_tokens: int
    turns: int
    retried_episodes: int
    """Episodes that failed before and were played again, whatever their outcome."""
    environment_metrics: dict[str, float]
    """`env/<name>`: the mean over episodes of each episode's metric, see `Trajectory.metrics`. If several
    seats are trained, `env/<agent>/<name>`."""


def statistics(played: Played) -> EpisodeStatistics:
    """Compute the counts."""
    everybody = [one for _, result in played for one in result.trajectories]
    by_agent: dict[str, list[Trajectory]] = defaultdict(list)
    for seat in trained_seats(played):
        by_agent[seat.trajectory.agent].append(seat.trajectory)
    several = len(by_agent) > 1
    seat_metrics: dict[str, float] = {}
    environment_metrics: dict[str, float] = {}
    mean = std = None
    for agent, trajectories in by_agent.items():
        completed = [trajectory for trajectory in trajectories if trajectory.completed]
        mean, std = _mean_and_std(completed)
        environment_metrics |= _environment_metrics(completed, f"{agent}/" if several else "")
        if several:
            seat_metrics |= _seat_metrics(agent, trajectories, mean, std)
    reasons = Counter(str(one.stop_reason.value) for some in by_agent.values() for one in some)
    return EpisodeStatistics(
        episodes=len(played),
        failed_episodes=sum(is_lost(result) for _, result in played),
        reward_mean=None if several else mean,
        reward_std=None if several else std,
        seat_metrics=seat_metrics,
        stop_reasons=dict(sorted(reasons.items())),
        sampled_tokens=sum(trajectory.sampled_tokens for trajectory in everybody),
        turns=sum(len(trajectory.turns) for trajectory in everybody),
        retried_episodes=sum(any(one.retries > 0 for one in result.trajectories) for _, result in played),
        environment_metrics=environment_metrics,
    )


def _mean_and_std(completed: Sequence[Trajectory]) -> tuple[float | None, float | None]:
    returns = np.asarray([trajectory.episode_return for trajectory in completed], dtype=np.float64)
    return (float(returns.mean()), float(returns.std())) if len(returns) else (None, None)


def _seat_metrics(
    agent: str, trajectories: Sequence[Trajectory], mean: float | None, std: float | None
) -> dict[str, float]:
    counted = {
        "reward_mean": mean,
        "reward_std": std,
        "turns": sum(len(trajectory.turns) for trajectory in trajectories),
        "sampled_tokens": sum(trajectory.sampled_tokens for trajectory in trajectories),
    }
    return {
        str(AgentMetric("seat", agent, name)): float(value)
        for name, value in counted.items()
        if value is not None
    }


def environment_metrics(completed: Iterable[Trajectory]) -> dict[str, float]:
    """Return the environment's own metrics: means over episodes, by name."""
    found = _environment_metrics(completed, "")
    return {name.removeprefix("env/"): value for name, value in found.items() if name.startswith("env/")}


def _environment_metrics(completed: Iterable[Trajectory], prefix: str) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(list)
    for trajectory in completed:
        for name, total in trajectory.metrics.items():
            sums[name].append(total)
    # Each is finite, but a sum of the largest numbers may not be.
    kept = sorted(sums, key=lambda name: (-len(sums[name]), name))[:MOST_STEP_METRICS]
    with np.errstate(over="ignore"):
        means = {f"env/{prefix}{name}": float(np.mean(sums[name])) for name in sorted(kept)}
    if len(sums) > len(kept):
        means[f"{prefix}env_metrics_left_out"] = float(len(sums) - len(kept))
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def within_limit(metrics: Mapping[str, float], most: int = MOST_METRICS_OF_LOOP) -> dict[str, float]:
    """Return a step's metrics, at most `most`; `metrics_left_out` counts the others.

    Many seats, policies and environments multiply their names. Those of the whole step are kept first, then
    those of policies and seats, then those that environments named, each in their order.
    """
    if len(metrics) <= most:
        return dict(metrics)
    kept = set(sorted(metrics, key=_rank)[: most - 1])  # Sorting is stable.
    cut = {name: value for name, value in metrics.items() if name in kept}
    return {**cut, "metrics_left_out": float(len(metrics) - len(cut))}


def _rank(name: str) -> int:
    if AgentMetric.parse(name).kind:
        return 1
    if name.startswith("environment/"):
        return 3 if "/env/" in name else 2
    return 4 if name.startswith("env/") else 0


def failure_warnings(played: Played, step: int) -> list[WarningEvent]:
    """Return one warning per kind of failure, most frequent first, with a traceback if there is one."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, result in played:
        if is_lost(result):
            trajectory = min(result.trajectories, key=_seat_failed_last)
            # Reasons of the same fault are equal except for numbers.
            reason = reason_line(trajectory.stop_reason.value, trajectory.error)
            kind = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)
            kinds[(trajectory.stop_reason.value, kind)].append(trajectory.error)
    commonest = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return [
        WarningEvent(name=name, message=_cut(name, errors[0]), count=len(errors), step=step)
        for (name, _), errors in commonest[:_WARNINGS_PER_STEP]
    ]


def too_many_failures(
    spec: PlayedSpec, played: Played, step: int, warnings: Sequence[WarningEvent]
) -> TooManyFailedEpisodesError | None:
    """Return the error that ends a job whose step lost more episodes than it allows.

    Args:
        spec: The job's settings.
        played: The step's episodes.
        step: The step.
        warnings: Those of `failure_warnings`, at least one.
    """
    failed = sum(is_lost(result) for _, result in played)
    if failed <= spec.max_failed_fraction * len(played):
        return None
    worst = warnings[0]
    return TooManyFailedEpisodesError(
        f"{failed} of the {len(played)} episodes of step {step} failed, most often with {worst.name} "
        f"({worst.count} times): {reason_line(worst.name, worst.message)}",
        hint=_WHAT_TO_DO.get(worst.name, _FIX_THE_ENVIRONMENT),
        field="max_failed_fraction",
    )


def _seat_failed_last(trajectory: Trajectory) -> tuple[bool, bool]:
    """Return a sort key that puts the seat whose failure ended the episode first."""
    return trajectory.completed, trajectory.stop_reason is StopReason.SEAT_FAILED


def _cut(stop_reason: str, error: str) -> str:
    """Shorten an error for an event, keeping the line with the reason."""
    return error[:_LONGEST_TEXT] if stop_reason in REASON_COMES_FIRST else error[-_LONGEST_TEXT:]


def spike_warnings(event: StepEvent) -> list[WarningEvent]:
    """Return a warning for each metric of the step with a spike, see `backend.learner.spikes`."""
    return [
        WarningEvent(
            name=name,
            message=f"the {what} of step {event.step}{whose(agent)} is {times:.0f} times as large as in the "
            "steps before; the gradient was clipped and applied. If rewards fall from here on, resume with a "
            "lower learning_rate",
            step=event.step,
        )
        for name, what in (("loss_spike", "loss"), ("grad_norm_spike", "gradient's norm"))
        for agent, times in event.by_policy(name).items()
    ]


def whose(agent: str) -> str:
    """Return the words that name a policy among several."""
    return f" for the policy of {agent!r}" if agent else ""


def episodes_to_read(played: Played, step: int) -> list[EpisodeEvent]:
    """Return the best and the worst completed episode of a step; only one if all are equal.

    With several seats, from the view of a trained one.
    """
    completed = [seat for seat in trained_seats(played) if seat.trajectory.completed]
    if not completed:
        return []
    best = max(completed, key=lambda seat: seat.trajectory.episode_return)
    worst = min(completed, key=lambda seat: seat.trajectory.episode_return)
    equal = best.trajectory.episode_return == worst.trajectory.episode_return
    return [
        EpisodeEvent(
            step=step,
            episode_id=request.episode_id,
            seed=request.seed,
            agent=trajectory.agent,
            stop_reason=trajectory.stop_reason.value,
            episode_return=trajectory.episode_return,
            transcript=[(role, text[:_LONGEST_TEXT]) for role, text in trajectory.transcript],
        )
        for request, trajectory in ([best] if equal else [best, worst])
    ]


def per_environment(spec: PlayedSpec, played: Played) -> dict[str, float]:
    """Return `environment/<name>/reward_mean` and so on; empty for a job with one environment.

    An environment that was not played in the step has only its number of episodes, 0.
    """
    if not spec.environments:
        return {}
    metrics: dict[str, float] = {}
    for name, environment in spec.own_environments.items():
        counted = statistics([pair for pair in played if pair[0].environment == environment])
        figures = {
            "reward_mean": counted.reward_mean,
            "reward_std": counted.reward_std,
            "episodes": counted.episodes,
            "failed_episodes": counted.failed_episodes,
            "turns": counted.turns,
            "sampled_tokens": counted.sampled_tokens,
            **counted.environment_metrics,
        }
        prefix = f"environment/{name}"
        metrics |= {f"{prefix}/{key}": float(value) for key, value in figures.items() if value is not None}
    return metrics
