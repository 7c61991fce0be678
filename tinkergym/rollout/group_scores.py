"""Group scores: the episodes of a group wait for each other, and are scored together.

No threads: the player reports ended episodes, and what environments return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.rollout.environment_host import AnyEnv, Host, Report
from tinkergym.rollout.host_pool import HostPool
from tinkergym.rollout.scoring import NoScore, scores_of
from tinkergym.rubrics.group import GroupMember, score_group_of
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.ids import EpisodeGroup, EpisodeId
from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import (
    LARGEST_REWARD,
    LONGEST_METRIC_NAME,
    MOST_METRICS,
    StopReason,
    Trajectory,
)
from tinkergym.user_code.quoting import quoted
from tinkergym.user_code.returned_values import finite_number


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


@dataclass(slots=True, eq=False)
class _Asked:
    """A group for which its environment is called."""

    group: WaitingGroup
    hosts: HostPool
    host: Host
    ends_at: float


class GroupScoring:
    """Holds the ended episodes of groups back: each group is scored once, when its last episode has ended."""

    def __init__(self, call_ids: Iterator[int], clock: Callable[[], float]) -> None:
        """Begin without a group.

        Args:
            call_ids: Ids for the calls of environments.
            clock: Seconds, monotonic.
        """
        self._call_ids, self._clock = call_ids, clock
        self._groups: dict[EpisodeGroup, WaitingGroup] = {}
        self._asked: dict[int, _Asked] = {}
        """By the call of the environment that is asked."""

    @property
    def active(self) -> int:
        """The number of groups being scored."""
        return len(self._asked)

    def drop(self, lease_id: str) -> None:
        """Forget the group of an episode whose lease is lost."""
        for key, group in list(self._groups.items()):
            if any(one.lease_id == lease_id for one in group.results.values()):
                del self._groups[key]

    def add(self, plan: EpisodePlan, result: EpisodeResult, hosts: HostPool) -> list[EpisodeResult]:
        """Add an ended episode, and call an environment if it is the last; return what needs no score."""
        own = EpisodeId.parse(plan.episode_id)
        key = own.in_group(plan.group)
        group = self._groups.setdefault(key, WaitingGroup(plan))
        group.results[own.index] = result
        if not group.whole:
            return []
        del self._groups[key]
        members, plan = len(group.members), group.plan
        if not members:
            return group.in_order
        assert plan.environment is not None, "the player makes environments by reference"
        host, _ = hosts.take(plan.environment, plan.data_sha256)
        # Each may need a judge for as long as a step.
        ends_at = self._clock() + members * plan.limits.step_timeout_seconds
        call_id = next(self._call_ids)
        self._asked[call_id] = _Asked(group, hosts, host, ends_at)
        host.episode_id = plan.episode_id
        host.call(call_id, group.ask)
        return []

    def reported(self, report: Report) -> list[EpisodeResult] | None:
        """Return the results of the group that a report is about; None for another call's report."""
        asked = self._asked.pop(report.call_id, None)
        if asked is None:
            return None
        if report.error:
            asked.hosts.discard(asked.host, hangs=False)
            return asked.group.scored_results(None, report.error, report.stop_reason)
        asked.hosts.give_back(asked.host)
        return asked.group.scored_results(report.value)

    def overdue(self, now: float) -> list[EpisodeResult]:
        """Give up the calls that take too long, and return the results of their groups."""
        found: list[EpisodeResult] = []
        for call_id, asked in list(self._asked.items()):
            if now >= asked.ends_at:
                del self._asked[call_id]
                asked.hosts.discard(asked.host, hangs=True)
                text = "score_group did not return within limits.step_timeout_seconds per episode"
                found += asked.group.scored_results(None, text, StopReason.ENVIRONMENT_TIMEOUT)
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
