import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.registration import environments as registration
from tinkergym.schema.job_spec import EnvironmentRef


class Question(tg.SingleTurnEnv):
    def __init__(self, level=1):
        if level > 9:
            raise RuntimeError("there is no such level")
        self.level = level

    def ask(self, options):
        return f"level {self.level}"

    def score(self, answer):
        return 0.0


class Other(Question):
    pass


def test_an_unknown_id_is_refused_with_the_ids_that_look_like_it():
    tg.register("tests/Question-v0", Question)
    with pytest.raises(UnknownEnvironmentError, match="did you mean tests/Question-v0"):
        tg.make("tests/Questoin-v0")


def test_registering_again_changes_nothing_and_another_class_is_refused():
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    assert tg.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    assert gym.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    with pytest.raises(InvalidRequestError, match="already registered"):
        tg.register("tests/Again-v0", Other)


def test_a_class_defined_anew_replaces_its_predecessor():
    def cell(text):
        class Edited(Question):
            def ask(self, options):
                return text

        tg.register("tests/Edited-v0", Edited)

    cell("old")
    cell("new")
    assert tg.make("tests/Edited-v0").reset(seed=0)[0] == "new"


def test_a_failing_constructor_is_named_and_chained():
    tg.register("tests/Levels-v0", Question)
    with pytest.raises(InvalidEnvironmentError, match="there is no such level") as caught:
        tg.make("tests/Levels-v0", level=10)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InvalidEnvironmentError, match="colour"):
        tg.make("tests/Levels-v0", colour="red")


def test_an_environment_is_made_from_a_jobs_reference():
    tg.register("tests/Referenced-v0", Question)
    env = registration.make_environment(EnvironmentRef(id="tests/Referenced-v0", kwargs={"level": 4}))
    assert env.reset(seed=0)[0] == "level 4"


def test_a_hand_written_environment_needs_none_of_our_classes():
    class Plain(gym.Env):
        observation_space = gym.spaces.Text(10)
        action_space = gym.spaces.Text(10)

        def reset(self, *, seed=None, options=None):
            return "hi", {}

    tg.register("tests/Plain-v0", Plain)
    assert tg.make("tests/Plain-v0").reset() == ("hi", {})


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
def test_an_argument_that_could_not_travel_with_a_job_is_refused(value):
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError, match="travel with a job as JSON") as made:
        tg.make("tests/Arguments-v0", level=value)
    assert made.value.field == "kwargs.level"
    with pytest.raises(InvalidRequestError, match="travel with a job as JSON"):
        tg.register("tests/Refused-v0", Question, kwargs={"level": value})
    assert "tests/Refused-v0" not in gym.registry


def test_a_data_set_as_an_argument_is_to_be_named_instead():
    tg.register("tests/Arguments-v0", Question)
    with pytest.raises(InvalidRequestError, match="name the data instead"):
        tg.make("tests/Arguments-v0", level=NO_JSON["a data set"])


def test_json_arguments_are_accepted_and_kept():
    tg.register("tests/Levels-v0", Question)
    env = tg.make("tests/Levels-v0", level=2.5)
    assert (env.spec.kwargs, env.reset(seed=0)[0]) == ({"level": 2.5}, "level 2.5")
