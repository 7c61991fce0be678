import re
import time

import pytest

from tests.tinkergym.testing.sound import Sound
from tinkergym.testing.checks_subject import Subject, TooSlowError, time_limit
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


class Backtracks(Sound):
    def reply(self, action):
        re.fullmatch(r"(a|a)*b", action[:60])
        return super().reply(action)


def test_interrupts_answer_that_takes_forever_to_parse(monkeypatch):
    monkeypatch.setattr("tinkergym.testing.checks_interface.LARGE_SECONDS", 0.2)
    found = results(Backtracks, "large action")["large action"]
    assert found.outcome is Outcome.FAILED
    assert "takes more than" in found.message


def test_restores_the_outer_time_limit_after_an_inner():
    with pytest.raises(TooSlowError), time_limit(0.05):
        with time_limit(10.0):
            pass
        while True:
            time.sleep(0.01)
