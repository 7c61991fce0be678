from tests.tinkergym.testing.sound import Sound
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


def test_proves_nothing_by_unknown_gold_actions():
    class Unsolved(Sound):
        def gold_action(self):
            return None

    assert results(Unsolved, "gold answer")["gold answer"].outcome is Outcome.SKIPPED
