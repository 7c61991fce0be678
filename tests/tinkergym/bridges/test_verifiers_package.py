"""With the real verifiers, in the Python that TINKERGYM_VERIFIERS_PYTHON names."""

import os
import re
from pathlib import Path

import pytest

from tests.tinkergym.bridges.at_once import at_once, count_on
from tinkergym.bridges import verifiers_process
from tinkergym.bridges.verifiers import VerifiersEnv
from tinkergym.errors import EnvironmentInfrastructureError, InvalidEnvironmentError, InvalidRequestError
from tinkergym.testing.contract import EnvContract

pytestmark = pytest.mark.skipif(
    "TINKERGYM_VERIFIERS_PYTHON" not in os.environ, reason="needs the package verifiers: make test-extras"
)
# Environments of v0 need verifiers < 0.4, tasksets of v1 a later one; both are tested, one after the other.
V1 = os.environ.get("TINKERGYM_VERIFIERS_V1") == "1"
v0 = pytest.mark.skipif(V1, reason="this verifiers has v1 only")
v1 = pytest.mark.skipif(not V1, reason="this verifiers has another v1")

SUMS = {
    "gym": [{"name": "chain_sum", "weight": 1.0, "config": {"max_terms": 2, "max_digits": 1}}],
    "num_train_examples": 40,
    "num_eval_examples": 10,
    "system_prompt": "Write <answer>N</answer>.",
}


@pytest.fixture(scope="module", autouse=True)
def path():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield
        for process in verifiers_process._processes.values():
            process.close()


def real(**arguments):
    return VerifiersEnv("real-verifiers-env", arguments=arguments)


def sums(split="train"):
    name = "verifiers.envs.integrations.reasoninggym_env:ReasoningGymEnv"
    return VerifiersEnv(name, arguments=SUMS, split=split)


@v0
class TestAPublishedEnvironment(EnvContract):
    def make(self):
        return sums()


@v0
def test_plays_published_environment_unchanged():
    env = sums("eval")
    assert len(env.tasks) == 10
    assert env.metadata["system_prompt"] == SUMS["system_prompt"]
    for index in range(10):
        ((message,), _) = env.reset(options={"task_index": index})
        a, sign, b = re.search(r"(-?\d+) ([+-]) (\d+)", message["content"]).groups()
        right = int(a) + int(f"{sign}{b}")
        assert env.step(f"<answer>{right}</answer>")[1:4] == (1.0, True, False)
        env.reset(options={"task_index": index})
        *_, info = wrong = env.step("<answer>no</answer>")
        assert wrong[1] < 1.0
        assert "format_reward_func" in info["metrics"]


@v0
def test_plays_environments_own_episode_of_several_turns():
    env = real()
    observation, _ = env.reset(options={"task_index": 1})
    assert observation == [{"role": "user", "content": "count from 4"}]
    assert env.step("4")[:4] == ([{"role": "user", "content": "next"}], 0.0, False, False)
    env.step("5")
    observation, reward, terminated, truncated, info = env.step("7")
    assert (reward, terminated, truncated) == (2.0, True, False)
    assert observation == [{"role": "user", "content": "done"}]
    assert info["metrics"]["paid"] == 2.0


@v0
def test_truncates_at_the_environments_own_limit():
    env = real(max_turns=2)
    env.reset(seed=0)
    env.step("1")
    assert env.step("x")[2:4] == (False, True)


@v0
def test_offers_calls_and_answers_tools():
    env = real(kind="tool")
    assert '"name": "add"' in env.metadata["system_prompt"]
    env.reset(seed=0)
    (message,), *_ = env.step('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>')
    assert (message["role"], message["content"]) == ("tool", "5")
    _, reward, terminated, *_ = env.step("It is 5.")
    assert (reward, terminated) == (1.0, True)


@v0
def test_loses_episode_on_an_error_of_environment():
    env = real()
    env.reset(seed=0)
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("break")
    env.reset(seed=0)
    assert env.step("1")[1] == 0.0
    with pytest.raises(InvalidEnvironmentError):
        VerifiersEnv("no-such-environment")


@v0
def test_separates_many_simultaneous_episodes():
    assert at_once(count_on, [real() for _ in range(6)]) == [3.0] * 6


@v1
def test_plays_taskset_unchanged_with_its_own_turns_and_rewards():
    env = VerifiersEnv("real-taskset")
    assert len(env.tasks) == 2
    observation, _ = env.reset(options={"task_index": 1})
    assert observation == [
        {"role": "system", "content": "Repeat."},
        {"role": "user", "content": "say green"},
    ]
    assert env.step("green")[:4] == ([{"role": "user", "content": "again"}], 0.0, False, False)
    _, reward, terminated, truncated, info = env.step("blue")
    assert (reward, terminated, truncated) == (0.5, True, False)
    assert info["metrics"] == {"repeated": 0.5, "turns": 2.0}


@v1
def test_takes_a_tasksets_settings_as_its_arguments():
    assert len(VerifiersEnv("real-taskset", arguments={"words": ["a", "b", "c"]}).tasks) == 3
    with pytest.raises(InvalidRequestError):
        VerifiersEnv("real-taskset", arguments={"colours": 3})
    with pytest.raises(InvalidRequestError) as error:
        VerifiersEnv("real-taskset", split="eval")
    assert error.value.field == "split"


@v1
def test_loses_episode_on_an_error_of_taskset():
    env = VerifiersEnv("real-taskset")
    env.reset(seed=0)
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("break")
    env.reset(seed=0)
    assert env.step("red")[2:4] == (False, False)
    env.close()


@v1
def test_separates_many_episodes_of_a_taskset():
    def play(place, env):
        word = env.reset(options={"task_index": place % 2})[0][-1]["content"].split()[-1]
        env.step(word)
        return env.step(word)[1]

    assert at_once(play, [VerifiersEnv("real-taskset") for _ in range(6)]) == [1.0] * 6
