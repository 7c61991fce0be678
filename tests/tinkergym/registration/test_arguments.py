import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError


class Question(tg.SingleTurnEnv):
    def __init__(self, level=1):
        if level > 9:
            raise RuntimeError("there is no such level")
        self.level = level

    def ask(self, options):
        return f"level {self.level}"

    def score(self, answer):
        return 0.0


NO_JSON = {
    "a data set": tg.tasks.SequenceTasks([{"question": "?"}]),
    "an array": np.arange(3),
    "a set in a list": [{1}],
    "a function": len,
    "not a number": float("nan"),
    "a key that is no string": {1: 2},
    "a number of numpy's": np.int64(3),
}


@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
def test_rejects_argument_that_could_not_travel_with_a_job(value):
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError) as made:
        tg.make("tests/Arguments-v0", level=value)
    assert made.value.field == "kwargs.level"
    with pytest.raises(InvalidRequestError) as caught:
        tg.register("tests/Refused-v0", Question, kwargs={"level": value})
    assert caught.value.field == "kwargs.level"
    assert "tests/Refused-v0" not in gym.registry


def test_asks_to_name_a_dataset_instead_of_passing_it():
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError) as caught:
        tg.make("tests/Arguments-v0", level=NO_JSON["a data set"])
    assert caught.value.field == "kwargs.level"


def test_accepts_and_keeps_json_arguments():
    tg.register("tests/Arguments-v0", Question)
    env = tg.make("tests/Arguments-v0", level=2.5)
    assert (env.spec.kwargs, env.reset(seed=0)[0]) == ({"level": 2.5}, "level 2.5")
