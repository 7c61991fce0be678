"""What a step of a scripted job reports: rewards of the episodes that were played, and failures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tinkergym.errors import TooManyFailedEpisodesError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import EvaluationEvent, StepEvent, WarningEvent
from tinkergym.schema.jobs.common import PlayedSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.trajectory.trajectory import StopReason, Trajectory, reason_line


def failures_of(results: Sequence[EpisodeResult]) -> list[Trajectory]:
    """Return one trajectory for each episode without a valid end: of the seat that says most about it."""
    lost = [one.trajectories for one in results if not all(seat.completed for seat in one.trajectories)]
    return [min(seats, key=_tells_less) for seats in lost]


def _tells_less(trajectory: Trajectory) -> tuple[bool, bool]:
    return trajectory.completed, trajectory.stop_reason is StopReason.SEAT_FAILED


def failure_warnings(results: Sequence[EpisodeResult], step: int) -> list[WarningEvent]:
    """Return a warning for each kind of failure, most frequent first, with the first error of its kind."""
    failed = failures_of(results)
    counts = Counter(one.stop_reason for one in failed)
    return [
        WarningEvent(
            name=reason.value,
            message=next(one.error for one in failed if one.stop_reason is reason),
            count=count,
            step=step,
        )
        for reason, count in counts.most_common()
    ]


def too_many_failures(
    spec: PlayedSpec, results: Sequence[EpisodeResult], step: int
) -> TooManyFailedEpisodesError | None:
    """Return the error that ends a job at this step, if more episodes failed than the job allows."""
    failed = len(failures_of(results))
    if failed <= spec.max_failed_fraction * len(results):
        return None
    worst = failure_warnings(results, step)[0]
    return TooManyFailedEpisodesError(
        f"{failed} of the {len(results)} episodes of step {step} failed, most often with {worst.name} "
        f"({worst.count} times): {reason_line(worst.name, worst.message)}",
        hint="fix the environment (the warnings have tracebacks) or raise max_failed_fraction",
        field="max_failed_fraction",
    )


def evaluation_event(view: JobView, name: str) -> EvaluationEvent:
    """Return an evaluation without episodes."""
    return EvaluationEvent(
        name=name,
        step=view.step,
        policy_version=view.policy_version,
        episodes=0,
        failed_episodes=0,
        mean=None,
    )


def step_event(view: JobView, results: Sequence[EpisodeResult]) -> StepEvent:
    """Return a step's report. Its mean is over completed episodes: a failure is not a reward of 0."""
    seats = [one for result in results for one in result.trajectories]
    returns = [one.episode_return for one in seats if one.completed]
    return StepEvent(
        step=view.step,
        steps=view.spec.steps,
        policy_version=view.policy_version,
        reward_mean=sum(returns) / len(returns) if returns else None,
        reward_std=0.0,
        loss=0.0,
        episodes=len(results),
        failed_episodes=len(failures_of(results)),
        stop_reasons=dict(Counter(one.stop_reason.value for one in seats)),
        sampled_tokens=0,
        turns=0,
        tokens_per_second=0.0,
        step_seconds=0.0,
        sampling_seconds=0.0,
        learning_seconds=0.0,
        seconds_left=0.0,
    )
