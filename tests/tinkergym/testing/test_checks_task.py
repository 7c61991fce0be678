import tinkergym as tg
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


def test_finds_task_on_which_gold_earns_less():
    rows = [{"answer": n if n % 3 == 0 else str(n)} for n in range(9)]

    class Mixed(tg.SingleTurnEnv):
        def __init__(self, rows=rows):
            super().__init__()
            self.tasks = tg.tasks.SequenceTasks(rows)

        def ask(self, options):
            self.gold = self.tasks.choose(self.np_random, options)[1]["answer"]
            return f"Say {self.gold}."

        def score(self, answer):
            return float(answer.strip() == self.gold)

        def gold_action(self):
            return str(self.gold)

    assert results(Mixed, "gold answer")["gold answer"].outcome is Outcome.FAILED
    text = [{"answer": str(n)} for n in range(9)]
    assert results(lambda: Mixed(text), "gold answer")["gold answer"].outcome is Outcome.OK
