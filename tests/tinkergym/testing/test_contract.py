import itertools

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.testing import EnvContract

_counter = itertools.count()


class Sound(tg.TextEnv):
    def start(self, options):
        self.left = 3
        return f"begin {self.np_random.integers(10)}"

    def reply(self, action):
        self.left -= 1
        return f"{self.np_random.integers(10)} left", 0.0, self.left == 0


class Unseeded(Sound):
    def reply(self, action):
        return f"call {next(_counter)}", 0.0, False


class Leaky(Sound):
    left = 3

    def start(self, options):
        return "begin"

    def reply(self, action):
        self.left -= 1
        return "on", 0.0, self.left <= 0


class Shared(Sound):
    state = {"left": 0}  # noqa: RUF012 - the mistake that is to be caught

    def start(self, options):
        Shared.state["left"] = 3
        return "begin"

    def reply(self, action):
        Shared.state["left"] -= 1
        return f"{Shared.state['left']}", 0.0, Shared.state["left"] == 0


class Surrogate(Sound):
    def reply(self, action):
        return "\ud800", 0.0, True


class ClosesOnce(Sound):
    def close(self):
        del self.left


class OutOfSpace(Sound):
    observation_space_limit = 3

    def __init__(self, render_mode=None):
        self.observation_space = tg.spaces.Text(3)


TESTS = [name for name in dir(EnvContract) if name.startswith("test_")]


def violations(environment):
    """Return the contract's tests that an environment fails."""
    tg.register(f"contract/{environment.__name__}-v0", environment)

    class Contract(EnvContract):
        environment_id = f"contract/{environment.__name__}-v0"

    failed = set()
    for name in TESTS:
        try:
            getattr(Contract(), name)()
        except (Exception, gym.error.Error):
            failed.add(name)
    return failed


def test_a_sound_environment_keeps_the_contract():
    assert violations(Sound) == set()


@pytest.mark.parametrize(
    ("environment", "broken"),
    [
        (Unseeded, "test_a_seed_gives_the_same_episode_again"),
        (Leaky, "test_a_seed_gives_the_same_episode_again"),
        (Shared, "test_a_seed_gives_the_same_episode_however_episodes_interleave"),
        (Surrogate, "test_observations_are_unicode_text"),
        (ClosesOnce, "test_closing_twice_is_allowed"),
        (OutOfSpace, "test_gymnasiums_checker_has_no_complaint"),
    ],
)
def test_each_clause_of_the_contract_catches_an_environment_that_breaks_it(environment, broken):
    assert broken in violations(environment)
