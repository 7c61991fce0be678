import unittest

import pytest

import tinkergym as tg
from tinkergym.testing import EnvContract
from tinkergym.testing.contract_checks import CHECKS


class Sound(tg.TextEnv):
    def start(self, options):
        self.left = 3
        return f"begin {self.np_random.integers(10)}"

    def reply(self, action):
        self.left -= 1
        return f"{self.np_random.integers(10)} left", 0.0, self.left == 0


class Broken(Sound):
    def close(self):
        del self.left


def outcomes(environment, **members):
    """Return how each of the contract's tests ends."""
    tg.register(f"contract/{environment.__name__}-v0", environment)
    contract = type(
        "Contract", (EnvContract,), {"environment_id": f"contract/{environment.__name__}-v0"} | members
    )
    found = {}
    for name in (name for name in dir(contract) if name.startswith("test_")):
        try:
            getattr(contract(), name)()
            found[name] = "passed"
        except unittest.SkipTest:
            found[name] = "skipped"
        except AssertionError as error:
            found[name] = str(error)
    return found


def test_keeps_contract_in_a_sound_environment():
    found = outcomes(Sound)
    assert len(found) == len(CHECKS)
    assert {name for name, how in found.items() if how == "skipped"} <= {"test_gold_answer", "test_grid_cell"}
    assert set(found.values()) <= {"passed", "skipped"}


def test_fails_one_test_per_broken_promise_with_what_to_do():
    found = outcomes(Broken)
    assert "make the second close() do nothing" in found["test_closes_twice"]
    assert found["test_same_seed"] == "passed"


def test_takes_contracts_own_actions_and_own_way_to_make():
    seen = []

    class Watched(Sound):
        def reply(self, action):
            seen.append(action)
            return super().reply(action)

    found = outcomes(Watched, make=lambda self: Watched(), actions=lambda self, seed: ["left", "right"])
    assert found["test_same_seed"] == "passed"
    assert found["test_rebuilds_from_its_spec"] == "skipped"
    assert {"left", "right"} <= set(seen)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_makes_every_check_a_test_with_a_sentence(check):
    test = getattr(EnvContract, f"test_{check.name.replace(' ', '_')}")
    assert len(test.__doc__.split()) > 3
