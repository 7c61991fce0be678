"""Asks an environment for the scores of a group, in the environment's own process if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.rollout.environment_host import AnyEnv, traceback_of
from tinkergym.rubrics.group import GroupMember, score_group_of
from tinkergym.user_code.quoting import type_in_words
from tinkergym.user_code.returned_values import settled


@dataclass(frozen=True, slots=True)
class NoScore:
    """Why a member has no score."""

    error: str


def scores_of(env: AnyEnv, members: Sequence[GroupMember]) -> list[Any]:
    """Call an environment that scores groups.

    Returns:
        Its score for each member; for one without a score, a `NoScore`.

    Raises:
        ValueError: It did not return one score per member.
    """
    score_group = score_group_of(env)
    assert score_group is not None
    scores = settled(score_group(members))
    if not isinstance(scores, Sequence) or isinstance(scores, str) or len(scores) != len(members):
        found = len(scores) if isinstance(scores, Sequence) else type_in_words(scores)
        raise ValueError(f"score_group must return {len(members)} scores, one per member, not {found}")
    # An exception may contain objects that cannot be sent to a process.
    return [_no_score(one) if isinstance(one, BaseException) else one for one in scores]


def _no_score(error: BaseException) -> NoScore:
    return NoScore(str(error) if error.__traceback__ is None else traceback_of(error))
