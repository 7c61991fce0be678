import gymnasium as gym

import tinkergym as tg
from tests.tinkergym.testing.sound import Sound
from tinkergym.registration.environments import make
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


class ForgetsArguments(gym.Wrapper):
    """Is not recorded in the spec as it was made."""

    def __init__(self, env):
        super().__init__(env)

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return f"new: {observation}", info

    @property
    def spec(self):
        return self.env.spec


def test_catches_wrapper_that_the_spec_does_not_record():
    tg.register("tests/Sound-v0", Sound)
    name = "rebuilds from its spec"
    assert results(lambda: ForgetsArguments(make("tests/Sound-v0")), name)[name].outcome is Outcome.FAILED


def test_leaves_returns_of_reset_to_gymnasiums_checker():
    class NoInfo(Sound):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0]

    first = next(run_checks(Subject(make=NoInfo)))
    assert (first.name, first.outcome) == ("gymnasium", Outcome.FAILED)
    assert "tuple" in first.message
