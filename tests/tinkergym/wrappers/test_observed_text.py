import gymnasium as gym
import pytest
from gymnasium import spaces

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers.observed_text import require_text_observations, with_text


class Shows(gym.Env):
    def __init__(self, space):
        self.observation_space = space


def test_puts_lines_around_a_text_wherever_it_stands():
    assert with_text("b", above="a", below="c") == "a\nb\nc"
    assert with_text({"text": "b", "mask": 1}, above="a") == {"text": "a\nb", "mask": 1}


def test_takes_only_environments_that_show_text():
    text = tg.spaces.Text(max_length=9)
    for space in (text, spaces.Dict({"text": text, "mask": spaces.Discrete(2)})):
        require_text_observations(Shows(space), "field")
    for space in (spaces.Discrete(2), spaces.Dict({"mask": spaces.Discrete(2)})):
        with pytest.raises(InvalidRequestError) as refused:
            require_text_observations(Shows(space), "field")
        assert refused.value.field == "field"
