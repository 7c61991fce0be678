import tinkergym as tg
from tests.tinkergym.testing.sound import Sound
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks


def results(make_env, only=None):
    """Return the results by name, of all checks or of one."""
    checks = [check for check in CHECKS if check.name == only] if only else None
    return {result.name: result for result in run_checks(Subject(make=make_env), checks)}


class AlwaysTheSame(Sound):
    def shown(self):
        self.number = 7
        return "say 7"


def test_lets_environment_declare_that_its_seed_decides_nothing():
    class Fixed(AlwaysTheSame):
        metadata = {**Sound.metadata, "deterministic": True}  # noqa: RUF012 - as Gymnasium declares it

    assert results(Fixed, "different seeds")["different seeds"].outcome is Outcome.SKIPPED


class Hidden(tg.SingleTurnEnv):
    """What its seed decides shows only in the reward of an answer that nobody guesses."""

    def ask(self, options):
        self.secret = self.drawn()
        return "Name the secret."

    def drawn(self):
        return str(self.np_random.integers(10**9))

    def score(self, answer):
        return float(answer == self.secret)


def test_blames_no_seed_for_randomness_that_no_action_shows():
    found = results(Hidden, "different seeds")["different seeds"]
    assert found.outcome is Outcome.SKIPPED
    assert "gold_action" in found.message

    class DrawnLate(tg.SingleTurnEnv):
        def ask(self, options):
            return "Guess."

        def score(self, answer):
            return float(answer == str(self.np_random.integers(10**9)))

        def gold_action(self):
            return None

    assert results(DrawnLate, "different seeds")["different seeds"].outcome is Outcome.SKIPPED

    class Told(Hidden):
        def gold_action(self):
            return self.secret

    assert results(Told, "different seeds")["different seeds"].outcome is Outcome.OK

    class Constant(Told):
        def drawn(self):
            return "7"

    assert results(Constant, "different seeds")["different seeds"].outcome is Outcome.FAILED


def test_finds_reset_that_does_not_pass_the_seed_on():
    class Unseeded(Hidden):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=0 if seed is not None else None, options=options)

    assert results(Unseeded, "different seeds")["different seeds"].outcome is Outcome.FAILED
