import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers.wording import Wording, load_wording


class Walk(gym.Env):
    observation_space = spaces.Discrete(9)
    action_space = spaces.Discrete(3, start=1)


class Directions(Wording):
    rules = "Walk to the goal."
    names = ("left", "Right", "stay")


def test_names_actions_by_wording_and_reads_them_in_any_spelling():
    words = Directions(Walk())
    assert words.legal_actions() == ["left", "Right", "stay"]
    assert [words.action(text) for text in (" LEFT\n", "right", "stay")] == [1, 2, 3]
    assert [words.action_text(action) for action in (1, 2, 3)] == ["left", "Right", "stay"]
    assert words.action("go left") is None
    assert words.system_prompt == "Walk to the goal. Answer with one of: left, Right, stay."


def test_numbers_actions_without_names():
    words = Wording(Walk())
    assert words.legal_actions() == ["1", "2", "3"]
    assert words.action("2") == 2
    assert words.action("4") is None


def test_lists_no_actions_that_cannot_be_counted():
    class Steer(gym.Env):
        observation_space = spaces.Discrete(2)
        action_space = spaces.Box(-1, 1, (1,), np.float32)

    assert Wording(Steer()).legal_actions() is None


@pytest.mark.parametrize("names", [("left", "right"), ("a", "b", "A"), ("a", "b", "c", "d")])
def test_rejects_names_that_do_not_fit_the_actions(names):
    with pytest.raises(InvalidRequestError) as caught:
        Wording(Walk(), names=names)
    assert caught.value.field == "action_names"


def test_finds_wording_by_its_name():
    assert load_wording("tinkergym.wrappers.wording:Wording") is Wording


@pytest.mark.parametrize("name", ["nowhere:Wording", "tinkergym.wrappers.wording:None", "json:loads", ""])
def test_rejects_what_is_no_wording(name):
    with pytest.raises(InvalidRequestError) as caught:
        load_wording(name)
    assert caught.value.field == "wording"
