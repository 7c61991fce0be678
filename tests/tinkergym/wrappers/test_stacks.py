"""Wrappers on one another: recorded in the spec, rebuilt from it, copied and vectorised."""

import pickle
import warnings

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import tinkergym as tg
from tinkergym.testing.contract import EnvContract
from tinkergym.wrappers import ExtractAnswer, RecordTranscript, StripReasoning, SystemPrompt, Verbalize


def stack(path):
    env = Verbalize(gym.make("FrozenLake-v1", disable_env_checker=True), decimals=1, on_illegal="random")
    env = ExtractAnswer(env, tag="move")
    env = SystemPrompt(StripReasoning(env), "Walk.")
    return RecordTranscript(env, path)


ACTIONS = ["<think>right?</think><move>2</move>", "<move>1</move>", "so be it", "<move>1</move>"]


def play(env, seed=3):
    seen = [env.reset(seed=seed)]
    for action in ACTIONS:
        if len(seen[-1]) == 5 and seen[-1][2]:
            break
        seen.append(env.step(action))
    return seen


@pytest.fixture
def path(tmp_path):
    return tmp_path / "games.jsonl"


def test_rebuilds_the_same_stack_from_spec_through_json(path):
    env = stack(path)
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gym.make(spec)
        assert str(again) == str(env)
        assert again.metadata == env.metadata
        assert play(again) == play(env)
        assert again.spec == env.spec


def test_passes_gymnasiums_check_of_stack_without_a_warning(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # It advises to check bare environments; here the stack is what is to be checked.
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(stack(path), skip_render_check=True)


def test_continues_copy_in_another_process_as_the_original_would(path):
    env = stack(path)
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert [copy.step(action) for action in ACTIONS[:2]] == [env.step(action) for action in ACTIONS[:2]]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_plays_stacks_in_gymnasiums_vector_environments(path, kind):
    makers = [lambda: stack(path)] * 2
    envs = (
        gym.vector.SyncVectorEnv(makers)
        if kind == "sync"
        else gym.vector.AsyncVectorEnv(makers, shared_memory=False)
    )
    observations, _ = envs.reset(seed=[3, 4])
    alone = [stack(path).reset(seed=seed)[0] for seed in (3, 4)]
    assert list(observations) == alone
    observations, *_ = envs.step((ACTIONS[0], ACTIONS[1]))
    assert all(isinstance(observation, str) for observation in observations)
    envs.close()


class TestStack(EnvContract):
    """With all wrappers that stand before an environment's text."""

    def make(self):
        env = ExtractAnswer(tg.make("classic/FrozenLake-v0"), tag="move", missing="whole")
        return SystemPrompt(StripReasoning(env), "Walk.")
