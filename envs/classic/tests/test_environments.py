import json
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.testing.contract import EnvContract

BARE = {
    "FrozenLake": ("FrozenLake-v1", {"is_slippery": True}),
    "Taxi": ("Taxi-v4", {"is_rainy": True}),
    "CliffWalking": ("CliffWalking-v1", {"is_slippery": True}),
    "Blackjack": ("Blackjack-v1", {}),
    "CartPole": ("CartPole-v1", {}),
}
"""Gymnasium's id, and settings that bring chance in."""

_pairs = {}


def pair(name):
    """One environment in words and one bare, with the same settings."""
    if name not in _pairs:
        bare_id, settings_ = BARE[name]
        _pairs[name] = make(f"classic/{name}-v0", **settings_), gym.make(bare_id, **settings_)
    return _pairs[name]


@pytest.mark.parametrize("name", BARE)
@given(seed=st.integers(0, 2**31), actions=st.lists(st.integers(0, 5), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_plays_as_gymnasiums_own_environment(name, seed, actions):
    env, bare = pair(name)
    inside = env.unwrapped._env.wording
    first, info = bare.reset(seed=seed)
    assert env.reset(seed=seed)[0] == inside.opening(first, info)
    for number in actions:
        action = number % int(bare.action_space.n)
        observation, reward, terminated, truncated, info = bare.step(action)
        words, *rest, _ = env.step(env.unwrapped.legal_actions()[action])
        assert words == inside.observation(observation, info)
        assert rest == [float(reward), terminated, truncated]
        if terminated or truncated:
            break


def play_gold(env, seed):
    env.reset(seed=seed)
    earned, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(env.unwrapped.gold_action())
        earned, over = earned + reward, terminated or truncated
    return earned


@pytest.mark.parametrize(
    ("name", "settings", "returns"),
    [
        ("FrozenLake", {}, {1.0}),
        ("FrozenLake", {"map_name": "8x8"}, {1.0}),
        ("FrozenLake", {"map_name": "random", "size": 6}, {1.0}),
        ("CliffWalking", {}, {-13.0}),
        ("CartPole", {}, {500.0}),
        ("Taxi", {}, set(map(float, range(3, 16)))),
    ],
)
def test_earns_most_by_the_best_actions(name, settings, returns):
    env = make(f"classic/{name}-v0", **settings)
    assert {play_gold(env, seed) for seed in range(10)} <= returns


def test_arrives_on_slippery_ice_in_three_of_four_walks():
    """0.74 is what Gymnasium names as the optimum."""
    env = make("classic/FrozenLake-v0", is_slippery=True)
    assert np.mean([play_gold(env, seed) for seed in range(150)]) == pytest.approx(0.74, abs=0.1)


def test_plays_blackjack_as_the_book_says():
    """Sutton and Barto, Reinforcement Learning, figure 5.2: the optimal policy for these rules."""
    from tinkergym_classic.blackjack_strategy import should_hit

    for total in range(12, 22):
        hard = [should_hit(total, dealer, usable_ace=False) for dealer in range(1, 11)]
        expected = [
            total < 17 and not (2 <= dealer <= 6 and (total > 12 or dealer >= 4)) for dealer in range(1, 11)
        ]
        assert hard == expected, total
        soft = [should_hit(total, dealer, usable_ace=True) for dealer in range(2, 11)]
        assert soft == [total < 18 or (total == 18 and dealer >= 9) for dealer in range(2, 11)], total


def test_earns_in_blackjack_what_the_best_policy_earns():
    env = make("classic/Blackjack-v0")
    assert np.mean([play_gold(env, seed) for seed in range(1000)]) == pytest.approx(-0.045, abs=0.1)


def test_derives_random_lake_from_its_seed_and_leaves_a_way():
    one, other = (make("classic/FrozenLake-v0", map_name="random", size=5) for _ in range(2))
    maps = [one.reset(seed=seed)[0] for seed in range(8)]
    assert maps == [other.reset(seed=seed)[0] for seed in range(8)]
    assert len(set(maps)) > 4
    lake = generate_random_map(5, seed=1)
    assert len(maps[0].splitlines()) == len(lake)


@pytest.mark.parametrize(
    ("field", "settings"),
    [("map_name", {"map_name": None}), ("map_name", {"map_name": "5x5"}), ("size", {"size": 1})],
)
def test_rejects_lake_that_no_seed_could_repeat(field, settings):
    with pytest.raises(InvalidRequestError) as caught:
        make("classic/FrozenLake-v0", **settings)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["Taxi", "CliffWalking"])
def test_offers_no_escape_by_illegal_action_where_steps_cost(name):
    env = make(f"classic/{name}-v0")
    env.reset(seed=0)
    for _ in range(20):
        _, reward, terminated, _, info = env.step("stop!")
        assert reward < 0
        assert not terminated
        assert info["metrics"]["illegal_moves"] == 1.0


def test_truncates_cliff_walking_at_its_limit():
    env = make("classic/CliffWalking-v0", max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step("left")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize("name", BARE)
def test_names_every_action_in_instructions_that_can_be_omitted(name):
    prompt = make(f"classic/{name}-v0").metadata["system_prompt"]
    assert all(action in prompt for action in make(f"classic/{name}-v0").unwrapped.legal_actions())
    assert "system_prompt" not in make(f"classic/{name}-v0", instructions=False).metadata


def test_mentions_slippery_ice_only_where_it_is():
    assert "slippery" not in make("classic/FrozenLake-v0").metadata["system_prompt"]
    assert "slippery" in make("classic/FrozenLake-v0", is_slippery=True).metadata["system_prompt"]


@pytest.mark.parametrize("name", BARE)
def test_returns_infos_as_json(name):
    env = make(f"classic/{name}-v0")
    json.dumps(env.reset(seed=0)[1], allow_nan=False)
    json.dumps(env.step(env.unwrapped.legal_actions()[0])[4], allow_nan=False)


class TestFrozenLake(EnvContract):
    environment_id = "classic/FrozenLake-v0"


class TestRandomFrozenLake(EnvContract):
    environment_id = "classic/FrozenLake-v0"
    kwargs = MappingProxyType({"map_name": "random"})


class TestTaxi(EnvContract):
    environment_id = "classic/Taxi-v0"


class TestCliffWalking(EnvContract):
    environment_id = "classic/CliffWalking-v0"


class TestBlackjack(EnvContract):
    environment_id = "classic/Blackjack-v0"


class TestCartPole(EnvContract):
    environment_id = "classic/CartPole-v0"
