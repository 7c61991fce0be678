import json
import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls

NAME = "math/ArithmeticWithPython-v0"


def code(text, syntax="hermes"):
    return render_calls([ToolCall("python", {"code": text})], syntax)


@pytest.mark.parametrize("syntax", ["hermes", "xml", "json"])
def test_finds_answer_by_the_tool(syntax):
    env = make(NAME, syntax=syntax)
    question, _ = env.reset(seed=3)
    observation, reward, terminated, _, info = env.step(code(question.removesuffix("="), syntax))
    assert (reward, terminated, info["metrics"]["tool_calls"]) == (0.0, False, 1.0)
    result = json.loads(observation)["result"] if syntax == "json" else observation.splitlines()[1]
    _, reward, terminated, _, info = env.step(result)
    assert (reward, terminated, info["metrics"]["correct"]) == (1.0, True, 1.0)


def test_accepts_gold_answer_and_no_other():
    env = make(NAME, digits=40)
    for change, reward in ((0, 1.0), (1, 0.0)):
        env.reset(seed=1)
        assert env.step(str(int(env.unwrapped.gold_action()) + change))[1] == reward


def test_gives_the_same_episode_by_a_seed():
    def played(env):
        return [env.reset(seed=5), env.step(code("print({'a', 'b', 'c'}); 1/0")), env.step("7")]

    assert played(make(NAME)) == played(make(NAME))


def test_passes_gymnasiums_check_and_is_remade_from_its_spec():
    env = make(NAME, max_calls=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.metadata["system_prompt"] == env.metadata["system_prompt"]
    assert "2 calls" in again.metadata["system_prompt"]
    assert again.metadata["turns"] == "multi"


@pytest.mark.parametrize("digits", [0, 101, 1.5, True, "6"])
def test_rejects_digits_out_of_range(digits):
    with pytest.raises(InvalidRequestError) as refused:
        make(NAME, digits=digits)
    assert refused.value.field == "digits"


@pytest.mark.parametrize(("setting", "value"), [("max_calls", 1.5), ("wall_seconds", 1e7)])
def test_rejects_limit_that_could_not_be_kept(setting, value):
    with pytest.raises(InvalidRequestError) as refused:
        make(NAME, **{setting: value})
    assert refused.value.field == setting
