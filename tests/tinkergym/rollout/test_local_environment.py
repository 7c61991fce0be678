from __future__ import annotations

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.rollout.local_environment import describe


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return "Say it again."

    def score(self, answer):
        return 1.0


def refusal(env) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        describe(env)
    assert caught.value.field == "environment"
    return str(caught.value)


def test_rejects_one_environment_of_an_id_with_that_id():
    said = refusal(tg.make("board/TicTacToeVs-v0"))
    assert "pass its id 'board/TicTacToeVs-v0'" in said
    assert "lambda: tg.make('board/TicTacToeVs-v0')" in said
    assert "OrderEnforcing" not in said


def test_rejects_environment_without_id_by_class_inside_its_wrappers():
    said = refusal(gym.wrappers.OrderEnforcing(Echo()))
    assert "pass the class Echo, or a function that creates one: lambda: Echo(...)" in said


@pytest.mark.parametrize(
    ("inner", "made"),
    [(lambda: Echo(), "Echo(...)"), (lambda: tg.make("CartPole-v1"), "tg.make('CartPole-v1')")],
)
def test_rejects_wrapped_environment_with_its_wrapper(inner, made):
    class Polite(gym.ObservationWrapper):
        def observation(self, observation):
            return observation

    for wrapped in (Polite(inner()), gym.wrappers.TimeLimit(Polite(inner()), 10)):
        said = refusal(wrapped)
        assert f"pass a function that creates it with its wrappers: lambda: Polite({made}, ...)" in said
