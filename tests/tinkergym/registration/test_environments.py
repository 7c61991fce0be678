import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.registration import environments as registration
from tinkergym.schema.jobs.parts import EnvironmentRef


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


def test_rejects_unknown_id_with_ids_that_look_like_it():
    tg.register("tests/Question-v0", Question)
    with pytest.raises(UnknownEnvironmentError):
        tg.make("tests/Questoin-v0")


def test_says_that_the_pack_of_an_unknown_id_is_missing():
    with pytest.raises(UnknownEnvironmentError):
        tg.make("elsewhere/Question-v0")


def test_ignores_same_registration_and_rejects_another_class():
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    tg.register("tests/Again-v0", Question, kwargs={"level": 3})
    assert tg.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    assert gym.make("tests/Again-v0").reset(seed=0)[0] == "level 3"
    with pytest.raises(InvalidRequestError) as caught:
        tg.register("tests/Again-v0", Other)
    assert caught.value.field == "id"


def test_replaces_predecessor_of_a_class_defined_anew():
    def cell(text):
        class Edited(Question):
            def ask(self, options):
                return text

        tg.register("tests/Edited-v0", Edited)

    cell("old")
    cell("new")
    assert tg.make("tests/Edited-v0").reset(seed=0)[0] == "new"


def test_names_and_chains_failing_constructor():
    tg.register("tests/Levels-v0", Question)
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make("tests/Levels-v0", level=10)
    assert caught.value.field == "environment"
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make("tests/Levels-v0", colour="red")
    assert caught.value.field == "environment"


def test_makes_environment_from_a_jobs_reference():
    tg.register("tests/Referenced-v0", Question)
    env = registration.make_environment(EnvironmentRef(id="tests/Referenced-v0", kwargs={"level": 4}))
    assert env.reset(seed=0)[0] == "level 4"


def test_accepts_hand_written_environment_without_our_classes():
    class Plain(gym.Env):
        observation_space = gym.spaces.Text(10)
        action_space = gym.spaces.Text(10)

        def reset(self, *, seed=None, options=None):
            return "hi", {}

    tg.register("tests/Plain-v0", Plain)
    assert tg.make("tests/Plain-v0").reset() == ("hi", {})
