"""EnvContract: what every environment promises, as tests to inherit."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.utils.env_checker import check_env

from tinkergym.messages import observation_text
from tinkergym.registration import make

_SEEDS = range(5)
_MOST_STEPS = 50


class EnvContract:
    """Inherit, name the environment, and pytest finds the tests.

    Example:
        >>> class TestBandit(EnvContract):
        ...     environment_id = "bandit/Bandit-v0"
    """

    environment_id: ClassVar[str] = ""
    kwargs: ClassVar[Mapping[str, Any]] = {}

    def make(self) -> gym.Env[Any, Any]:
        """Create the environment; override it for one that is not registered."""
        return make(self.environment_id, **self.kwargs)

    def actions(self, seed: int) -> list[str]:
        """Return actions to play with; override it with some that go deeper than random text does."""
        space = self.make().action_space
        space.seed(seed)
        return [space.sample() for _ in range(_MOST_STEPS)]

    def test_gymnasiums_checker_has_no_complaint(self) -> None:
        """`check_env` passes with warnings as errors."""
        env = self.make().unwrapped
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Rendering is left out: a text environment need not have any.
            check_env(env, skip_render_check=env.spec is None)
        env.close()

    def test_observations_are_unicode_text(self) -> None:
        """Every observation is text that JSON and a tokenizer can carry."""
        for seed in _SEEDS:
            for observation, *_ in _episode(self.make(), seed, self.actions(seed)):
                observation_text(observation)

    def test_a_seed_gives_the_same_episode_again(self) -> None:
        """In a fresh environment, and in one that has played before."""
        used = self.make()
        for seed in _SEEDS:
            actions = self.actions(seed)
            assert _episode(self.make(), seed, actions) == _episode(used, seed, actions)

    def test_a_seed_gives_the_same_episode_however_episodes_interleave(self) -> None:
        """In turns with another episode, and in a thread."""
        actions = self.actions(0)
        expected = _episode(self.make(), 0, actions)
        first, second = self.make(), self.make()
        first_record: list[Any] = [first.reset(seed=0)]
        second_record: list[Any] = [second.reset(seed=1)]
        for action in actions:
            for env, record in ((first, first_record), (second, second_record)):
                if not _over(record):
                    record.append(env.step(action))
        assert first_record == expected
        in_thread: list[Any] = []
        thread = threading.Thread(target=lambda: in_thread.extend(_episode(self.make(), 0, actions)))
        thread.start()
        thread.join()
        assert in_thread == expected

    def test_closing_twice_is_allowed(self) -> None:
        """As Gymnasium asks."""
        env = self.make()
        env.reset(seed=0)
        env.close()
        env.close()


def _episode(env: gym.Env[Any, Any], seed: int, actions: list[str]) -> list[Any]:
    record: list[Any] = [env.reset(seed=seed)]
    for action in actions:
        if _over(record):
            break
        record.append(env.step(action))
    return record


def _over(record: list[Any]) -> bool:
    return len(record[-1]) == 5 and (record[-1][2] or record[-1][3])
