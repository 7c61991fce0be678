"""A rubric over the whole of a group."""

from __future__ import annotations

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRewardError
from tinkergym.rubrics import GroupMember, Rubric, score_members
from tinkergym.rubrics.group import score_group_of


def members(*answers):
    return [
        GroupMember(observations=["?"], answers=["first", text], reward=float(n))
        for n, text in enumerate(answers)
    ]


def test_shows_terms_all_answers_and_the_judged_one():
    rubric = Rubric()

    @rubric.term
    def shared(group_answers, place, answer):
        assert group_answers[place] == answer
        return group_answers.count(answer) / len(group_answers)

    @rubric.term(weight=0.1)
    def before(reward, observation, answers, solution):
        return reward * (observation == "?") * (len(answers) == 2) * (solution == 7)

    scores = score_members(rubric, members("a", "b", "a"), solution=7)
    assert [score.reward for score in scores] == pytest.approx([2 / 3, 1 / 3 + 0.1, 2 / 3 + 0.2])
    assert scores[1].metrics["reward/shared"] == pytest.approx(1 / 3)


def test_loses_only_the_member_whose_term_has_no_value():
    rubric = Rubric()

    @rubric.term
    def number(answer):
        return float(answer)

    first, second = score_members(rubric, members("1", "one"))
    assert first.reward == 1.0
    assert isinstance(second, InvalidRewardError)


def test_finds_an_environments_own_through_wrappers():
    class Paid(tg.SingleTurnEnv):
        def score_group(self, members):
            return [1.0] * len(members)

    assert score_group_of(gym.Wrapper(Paid()))(members("a")) == [1.0]
    assert score_group_of(gym.Wrapper(tg.SingleTurnEnv())) is None
