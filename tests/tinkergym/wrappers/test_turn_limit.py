import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers import TurnLimit


class Chat(tg.TextEnv):
    """Talks until it hears `bye`."""

    def start(self, options):
        return "Hello."

    def reply(self, action):
        return "Yes?", 0.0, action == "bye"


def test_truncates_at_the_last_turn():
    env = TurnLimit(Chat(), turns=2)
    env.reset(seed=0)
    assert env.step("a")[2:4] == (False, False)
    assert env.step("b")[2:4] == (False, True)


def test_does_not_truncate_a_task_that_ends_with_last_turn():
    env = TurnLimit(Chat(), turns=1)
    env.reset(seed=0)
    assert env.step("bye")[2:4] == (True, False)


def test_gives_each_episode_all_its_turns():
    env = TurnLimit(Chat(), turns=2)
    for _ in range(3):
        env.reset(seed=0)
        assert env.step("a")[3] is False
        assert env.step("a")[3] is True


def test_tells_turns_that_are_left_when_wanted():
    env = TurnLimit(Chat(), turns=3, announce=True)
    assert env.reset(seed=0)[0] == "Hello.\n(3 turns left)"
    assert env.step("a")[0] == "Yes?\n(2 turns left)"
    assert env.step("a")[0] == "Yes?\n(1 turn left)"
    assert env.step("a")[0] == "Yes?"
    assert TurnLimit(Chat(), turns=3).reset(seed=0)[0] == "Hello."


@pytest.mark.parametrize("turns", [0, -1, 1.5, True, "3"])
def test_rejects_invalid_limit(turns):
    with pytest.raises(InvalidRequestError) as refused:
        TurnLimit(Chat(), turns=turns)
    assert refused.value.field == "turns"


def test_rejects_telling_turns_where_there_is_no_text():
    with pytest.raises(InvalidRequestError) as caught:
        TurnLimit(gym.make("CartPole-v1"), turns=3, announce=True)
    assert caught.value.field == "announce"


def test_records_itself_in_the_spec_and_is_rebuilt():
    made = TurnLimit(tg.make("board/TicTacToeVs-v0"), turns=1, announce=True)
    again = gym.make(made.spec)
    assert again.reset(seed=1) == made.reset(seed=1)
    assert again.step("b2") == made.step("b2")
