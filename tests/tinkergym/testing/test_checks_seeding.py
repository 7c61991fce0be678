from tests.tinkergym.testing.sound import Sound
from tinkergym.testing.checks import CHECKS, Outcome, run_checks
from tinkergym.testing.checks_subject import Subject


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


class AlwaysTheSame(Sound):
    def shown(self):
        self.number = 7
        return "say 7"


def test_an_environment_whose_seed_decides_nothing_may_say_so():
    class Fixed(AlwaysTheSame):
        metadata = {**Sound.metadata, "deterministic": True}  # noqa: RUF012 - as Gymnasium declares it

    assert results(Fixed, "different seeds")["different seeds"].outcome is Outcome.SKIPPED
