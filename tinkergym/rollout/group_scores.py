"""Group scores: the episodes of a group wait for each other, and are scored together.

Bookkeeping without time or threads: the player reports ended episodes, and calls the environment for a whole
group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.agent.plan import EpisodePlan
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.scoring import NoScore, scores_of
from tinkergym.rubrics.group import GroupMember, score_group_of
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import (
    LARGEST_REWARD,
    LONGEST_METRIC_NAME,
    MOST_METRICS,
    StopReason,
    Trajectory,
)
from tinkergym.user_code.quoting import quoted
from tinkergym.user_code.scalars import finite_number


@dataclass(slots=True)
class WaitingGroup:
    """The episodes of one group that have ended."""

    plan: EpisodePlan
    """The plan of one of them: seed, task and environment are the same for all."""
    results: dict[int, EpisodeResult] = field(default_factory=dict)
    """By the episode's index in the step."""

    @property
    def whole(self) -> bool:
        """Whether all of them have ended."""
        return len(self.results) >= self.plan.group_size

    @property
    def in_order(self) -> list[EpisodeResult]:
        """The results, by index."""
        return [self.results[index] for index in sorted(self.results)]

    @property
    def members(self) -> list[GroupMember]:
        """The members passed to the environment: completed episodes, in order."""
        return [_member(one.trajectory) for one in self.in_order if one.trajectory.completed]

    def ask(self, env: AnyEnv) -> list[Any] | None:
        """Reset the environment like the episodes did, and call it; None if it does not score groups."""
        if score_group_of(env) is None:
            return None
        plan = self.plan
        options = None if plan.task_index is None else {"task_index": plan.task_index}
        env.reset(seed=plan.seed, options=options)
        return scores_of(env, self.members)

    def scored_results(
        self,
        scores: Sequence[Any] | None,
        error: str = "",
        reason: StopReason = StopReason.INVALID_REWARD,
    ) -> list[EpisodeResult]:
        """Return the results with their new returns.

        Args:
            scores: The result of `ask`.
            error: Why there are no scores: then every completed episode is lost.
            reason: The stop reason for that error.
        """
        if scores is None and not error:
            return self.in_order
        paid = iter(scores or ())
        found = []
        for one in self.in_order:
            trajectory = one.trajectory
            if trajectory.completed:
                trajectory = (
                    _lost(trajectory, error, reason) if error else _with_score(trajectory, next(paid))
                )
            found.append(one.model_copy(update={"trajectories": [trajectory]}))
        return found


def refuse_group_rewards(env: AnyEnv, why: str) -> None:
    """Raise an error for an environment that scores groups, if groups are not played.

    Raises:
        InvalidEnvironmentError: It has a `score_group`.
    """
    if score_group_of(env) is not None:
        raise InvalidEnvironmentError(
            f"{type(env.unwrapped).__name__} scores the episodes of a group together (score_group), but "
            f"{why}",
            hint="train it with client.train, by its class or as an installed pack",
            field="environment",
        )


def _member(trajectory: Trajectory) -> GroupMember:
    return GroupMember(
        observations=[content_text(turn.observation) for turn in trajectory.turns],
        answers=[content_text(turn.action) for turn in trajectory.turns],
        reward=trajectory.episode_return,
        metrics=trajectory.metrics,
        terminated=trajectory.terminated,
    )


def _with_score(trajectory: Trajectory, score: Any) -> Trajectory:
    """Return an episode with its last reward changed so that its return is the score."""
    if isinstance(score, NoScore):
        return _lost(trajectory, score.error)
    *_, last = trajectory.turns
    earned = trajectory.episode_return - last.reward
    try:
        value, metrics = score if isinstance(score, tuple) else (score, {})
        paid = _bounded(finite_number(value) - earned)
        shown = _metrics(metrics, last.metrics)
    except (TypeError, ValueError) as error:
        return _lost(trajectory, f"score_group returned {error}")
    turn = last.model_copy(update={"reward": paid, "metrics": shown})
    return trajectory.model_copy(update={"turns": [*trajectory.turns[:-1], turn]})


def _bounded(reward: float) -> float:
    if abs(reward) > LARGEST_REWARD:
        raise ValueError(f"{reward:g}, which is beyond {LARGEST_REWARD:g}")
    return reward


def _metrics(values: Any, known: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise TypeError(f"metrics must be a mapping, got {quoted(values)}")
    long = next((name for name in values if len(str(name)) > LONGEST_METRIC_NAME), None)
    if long is not None:
        raise ValueError(f"a metric with the name {quoted(long)}, which is too long")
    found = {**known, **{str(name): finite_number(value) for name, value in values.items()}}
    if len(found) > MOST_METRICS:
        raise ValueError(f"more than {MOST_METRICS} metrics")
    return found


def _lost(trajectory: Trajectory, error: str, reason: StopReason = StopReason.INVALID_REWARD) -> Trajectory:
    *before, last = trajectory.turns
    return trajectory.model_copy(
        update={
            "turns": [*before, last.model_copy(update={"reward": 0.0})],
            "terminated": False,
            "truncated": False,
            "stop_reason": reason,
            "error": error,
        }
    )
