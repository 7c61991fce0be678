"""What a finished step tells the user: numbers, an episode to read, and what went wrong. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tinkergym.loop.trajectory import REASON_COMES_FIRST, Trajectory, reason_line
from tinkergym.wire import EpisodeEvent, EpisodeRequest, EpisodeResult, StepEvent, WarningEvent

Played = Sequence[tuple[EpisodeRequest, EpisodeResult]]
"""A step's episodes in index order."""

_WARNINGS_PER_STEP = 5
_LONGEST_TEXT = 4000
"""Characters of a traceback or of one message of a transcript that an event carries."""

MOST_STEP_METRICS = 200
"""Names of environment metrics in one step's event; those of most episodes stay, others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStatistics:
    """What can be counted in a step's episodes; means are over the completed ones."""

    episodes: int
    failed_episodes: int
    reward_mean: float | None
    reward_std: float | None
    """Both None when no episode was completed: a failure is no reward of 0."""
    stop_reasons: dict[str, int]
    sampled_tokens: int
    turns: int
    retried_episodes: int
    """How many had failed before and were played again, whatever came of it."""
    environment_metrics: dict[str, float]
    """`env/<name>`: the mean over episodes of each episode's sum of that metric."""


def statistics(played: Played) -> EpisodeStatistics:
    """Count."""
    trajectories = [result.trajectory for _, result in played]
    completed = [trajectory for trajectory in trajectories if trajectory.completed]
    returns = np.asarray([trajectory.episode_return for trajectory in completed], dtype=np.float64)
    return EpisodeStatistics(
        episodes=len(trajectories),
        failed_episodes=len(trajectories) - len(completed),
        reward_mean=float(returns.mean()) if len(returns) else None,
        reward_std=float(returns.std()) if len(returns) else None,
        stop_reasons=dict(sorted(Counter(str(t.stop_reason.value) for t in trajectories).items())),
        sampled_tokens=sum(trajectory.sampled_tokens for trajectory in trajectories),
        turns=sum(len(trajectory.turns) for trajectory in trajectories),
        retried_episodes=sum(trajectory.retries > 0 for trajectory in trajectories),
        environment_metrics=_environment_metrics(completed),
    )


def _environment_metrics(completed: Iterable[Trajectory]) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(list)
    for trajectory in completed:
        of_episode: dict[str, float] = defaultdict(float)
        for turn in trajectory.turns:
            for name, value in turn.metrics.items():
                of_episode[name] += value
        for name, total in of_episode.items():
            sums[name].append(total)
    # Each is finite; of the largest numbers that there are the sum need not be.
    kept = sorted(sums, key=lambda name: (-len(sums[name]), name))[:MOST_STEP_METRICS]
    with np.errstate(over="ignore"):
        means = {f"env/{name}": float(np.mean(sums[name])) for name in sorted(kept)}
    if len(sums) > len(kept):
        means["env_metrics_left_out"] = float(len(sums) - len(kept))
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def failure_warnings(played: Played, step: int) -> list[WarningEvent]:
    """Return one warning per kind of failure, the commonest first, each with a traceback if there is one."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, result in played:
        trajectory = result.trajectory
        if not trajectory.completed:
            # The reasons of one fault are the same, but for their numbers.
            reason = reason_line(trajectory.stop_reason.value, trajectory.error)
            kind = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)
            kinds[(trajectory.stop_reason.value, kind)].append(trajectory.error)
    commonest = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return [
        WarningEvent(name=name, message=_cut(name, errors[0]), count=len(errors), step=step)
        for (name, _), errors in commonest[:_WARNINGS_PER_STEP]
    ]


def _cut(stop_reason: str, error: str) -> str:
    """Return as much of an error as an event carries, the line with the reason in it."""
    return error[:_LONGEST_TEXT] if stop_reason in REASON_COMES_FIRST else error[-_LONGEST_TEXT:]


def spike_warnings(event: StepEvent) -> list[WarningEvent]:
    """Return a warning for each number of the step that was far from usual, see `backend.learner.spikes`."""
    return [
        WarningEvent(
            name=name,
            message=f"the {what} of step {event.step} is {event.metrics[name]:.0f} times as large as in the "
            "steps before; the gradient was clipped and applied. If rewards fall from here on, resume with a "
            "lower learning_rate",
            step=event.step,
        )
        for name, what in (("loss_spike", "loss"), ("grad_norm_spike", "gradient's norm"))
        if name in event.metrics
    ]


def nothing_to_compare(event: StepEvent) -> WarningEvent | None:
    """Return a warning if nothing told the episodes of any group apart, else None."""
    silent, compared = (event.metrics.get(name) for name in ("zero_variance_groups", "compared_groups"))
    if not compared or silent != compared:
        return None  # also where a value head or a teacher judges each episode by itself
    return WarningEvent(
        name="nothing_to_compare",
        message=f"in none of the {compared:.0f} groups of step {event.step} did any episode earn more than "
        "what it is compared with: the rewards taught nothing. If it goes on, make the task easier or its "
        "reward finer, or raise group_size or sampling.temperature",
        step=event.step,
    )


def episodes_to_read(played: Played, step: int) -> list[EpisodeEvent]:
    """Return the best and the worst completed episode of a step; one, if all are equal."""
    completed = [(request, result) for request, result in played if result.trajectory.completed]
    if not completed:
        return []
    best = max(completed, key=lambda pair: pair[1].trajectory.episode_return)
    worst = min(completed, key=lambda pair: pair[1].trajectory.episode_return)
    chosen = (
        [best] if best[1].trajectory.episode_return == worst[1].trajectory.episode_return else [best, worst]
    )
    return [
        EpisodeEvent(
            step=step,
            episode_id=request.episode_id,
            seed=request.seed,
            stop_reason=result.trajectory.stop_reason.value,
            episode_return=result.trajectory.episode_return,
            transcript=[(role, text[:_LONGEST_TEXT]) for role, text in result.trajectory.transcript],
        )
        for request, result in chosen
    ]
