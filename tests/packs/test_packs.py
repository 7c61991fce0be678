"""What every pack promises, asked of each environment with each kind of setting it has."""

import json
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.playable import can_play
from tinkergym.registration.environments import make, pack_of, registered
from tinkergym.registration.packs import find_packs
from tinkergym.spaces import Text

OURS = {
    "bandit/Bandit-v0": [{}, {"offered": 8, "machine": 3}, {"instructions": True}],
    "board/GomokuVs-v0": [{}, {"opponent": "heuristic"}, {"size": 9, "win": 5}, {"instructions": True}],
    "board/TicTacToeVs-v0": [{}, {"opponent": "heuristic"}, {"size": 4}, {"instructions": True}],
    "math/Arithmetic-v0": [{}, {"split": "test"}, {"instructions": True}],
}
INSTALLED = {name for pack in find_packs() for name in pack.environment_ids}
CASES = [pytest.param(name, kwargs, id=f"{name} {kwargs}") for name in OURS for kwargs in OURS[name]]


def test_finds_our_packs_by_their_entry_points():
    packs = {pack.name: pack for pack in find_packs()}
    assert set(packs) >= {"bandit", "board", "math"}
    assert not [refusal for pack in packs.values() for refusal in pack.refused]
    assert set(registered()) >= set(OURS)
    assert {pack_of(name).distribution for name in OURS} == {
        "tinkergym-bandit",
        "tinkergym-board",
        "tinkergym-math",
    }


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_passes_gymnasiums_check_without_a_warning(name, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(name, **kwargs).unwrapped)


@pytest.mark.parametrize("name", sorted(name for name in INSTALLED if can_play(name)))
def test_checks_every_installed_environment_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(name).unwrapped)


def plausible_actions(observation, rng):
    """What an agent might say: mostly words of the observation, now and then a number or nonsense."""
    words = observation.replace("Pull:", "").split()
    return [*(words[int(rng.integers(len(words)))] for _ in range(8)), str(rng.integers(100)), "¿?"]


def play(env, seed):
    """Play one episode with chance words; return all that came back as JSON."""
    rng = np.random.default_rng([seed, 1])
    observation, info = env.reset(seed=seed)
    seen, ended = [observation, info], False
    while not ended:
        actions = plausible_actions(observation, rng)
        action = actions[int(rng.integers(len(actions)))]
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert type(reward) is float
        assert not truncated
        ended = terminated
        seen += [observation, reward, terminated, info]
    return json.dumps(seen, allow_nan=False)


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_repeats_episode_by_seed_however_episodes_interleave(name, kwargs):
    alone = [play(make(name, **kwargs), seed) for seed in range(10)]
    env, other = make(name, **kwargs), make(name, **kwargs)
    for seed in reversed(range(10)):
        other.reset(seed=seed + 100)
        assert play(env, seed) == alone[seed]
    assert len(set(alone)) > 1


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_uses_text_spaces_and_settings_that_travel_as_json(name, kwargs):
    env = make(name, **kwargs)
    assert isinstance(env.observation_space, Text)
    assert isinstance(env.action_space, Text)
    json.dumps(env.spec.kwargs, allow_nan=False)


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_names_finite_metrics_in_the_last_step(name, kwargs):
    for seed in range(10):
        metrics = json.loads(play(make(name, **kwargs), seed))[-1]["metrics"]
        assert metrics
        assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_copies_environment_to_another_process(name, kwargs):
    env = make(name, **kwargs).unwrapped
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert play(copy, 4) == play(env, 4)


@pytest.mark.parametrize("name", sorted(OURS))
def test_plays_in_gymnasiums_vector_environments(name):
    make(name)  # loads the packs, so that gymnasium knows the id
    envs = gym.make_vec(name, num_envs=3, vectorization_mode="sync")
    observations, _ = envs.reset(seed=5)
    assert list(observations) == [make(name).reset(seed=5 + i)[0] for i in range(3)]


@pytest.mark.parametrize("name", sorted(OURS))
def test_sends_no_instructions_unless_asked_for(name):
    assert "system_prompt" not in make(name).metadata
    assert make(name, instructions=True).metadata["system_prompt"]
