"""Group rewards: the return of each episode of a group, scored with all of them in view.

An environment with a method `score_group(members)` is scored this way in training: when every episode of a
group has ended, it is reset like they were, and called once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.errors import InvalidRewardError
from tinkergym.rubrics.rubric import Rubric, RubricResult

GroupScore = float | tuple[float, Mapping[str, float]] | Exception
"""A return, one with named metrics, or an error: the episode is then lost and not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One completed episode of a group, as passed to `score_group`."""

    observations: list[str]
    """Its observations, turn by turn."""
    answers: list[str]
    """The policy's answers, turn by turn."""
    reward: float
    """The sum of the rewards from `step`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The sum of each metric over its turns."""
    terminated: bool = True
    """False if a limit cut it off."""

    @property
    def answer(self) -> str:
        """The last answer."""
        return self.answers[-1]


def score_members(rubric: Rubric, members: Sequence[GroupMember], **facts: Any) -> list[GroupScore]:
    """Score each member of a group by a rubric whose terms can see the whole group.

    Args:
        rubric: Its terms may name `answer` (the last), `answers`, `observation` (the first), `reward` (the
            sum from `step`), `metrics`, `group_answers` (the last answers of all members) and `place` (the
            index of the scored one).
        members: All members of a group.
        facts: More facts, the same for all members, such as the task's solution.

    Returns:
        One score per member; the error for a member for which a term fails.
    """
    group_answers = [member.answer for member in members]
    scores: list[GroupScore] = []
    for place, member in enumerate(members):
        own = {
            "answer": member.answer,
            "answers": member.answers,
            "observation": member.observations[0],
            "reward": member.reward,
            "metrics": member.metrics,
            "group_answers": group_answers,
            "place": place,
        }
        try:
            found: RubricResult = rubric.score(**{**facts, **own})
        except InvalidRewardError as error:
            scores.append(error)
        else:
            scores.append(found)
    return scores


def score_group_of(env: Any) -> Callable[[Sequence[GroupMember]], Any] | None:
    """Return an environment's own `score_group`, through its wrappers; None if it has none."""
    while env is not None:
        # Not `getattr(env, ...)`: some wrappers forward attributes.
        if hasattr(type(env), "score_group") or "score_group" in getattr(env, "__dict__", {}):
            found: Callable[[Sequence[GroupMember]], Any] = env.score_group
            return found
        env = getattr(env, "env", None)
    return None
