from __future__ import annotations

import gymnasium as gym
import pytest

from tests.tinkergym.rollout.random_games import HiddenMoves, RandomGame
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.rollout.seat_check import check_seats, first_standing


@pytest.mark.parametrize("game", [RandomGame, HiddenMoves])
def test_takes_the_seats_of_a_game_in_any_order(game):
    table = check_seats(game(3), ["p2", "p0", "p1"], "x/Y-v0")
    assert first_standing(table, 1, "x/Y-v0").agent in {"p0", "p1", "p2"}


@pytest.mark.parametrize(
    ("agents", "field", "shown"),
    [
        (["p0", "p1", "black"], "agents.black", "no agent 'black'"),
        (["p0", "p1", "p22"], "agents.p22", "did you mean 'p2'"),
        (["p0", "p2"], "agents", "needs a policy for agent 'p1'"),
        (["p0", "p2"], "agents", "agents={'ID': tg.Train()}"),
        ([], "agents", "self_play=True"),
    ],
)
def test_rejects_other_seats_with_the_list_of_ids(agents, field, shown):
    with pytest.raises(InvalidRequestError) as caught:
        check_seats(RandomGame(3), agents, "x/Y-v0")
    assert caught.value.field == field
    assert shown in str(caught.value)


def test_has_no_seats_for_one_agent():
    env = gym.make("bandit/Bandit-v0")
    assert check_seats(env, [], "bandit/Bandit-v0") is None
    with pytest.raises(InvalidRequestError) as caught:
        check_seats(env, ["p0"], "bandit/Bandit-v0")
    assert caught.value.field == "agents"


def test_rejects_game_over_before_anybody_acts():
    class Over(RandomGame):
        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.terminations = dict.fromkeys(self.agents, True)

    with pytest.raises(InvalidEnvironmentError) as caught:
        first_standing(check_seats(Over(2), ["p0", "p1"], "x/Y-v0"), 0, "x/Y-v0")
    assert caught.value.field == "environment"
