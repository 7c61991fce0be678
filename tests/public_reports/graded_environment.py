"""An environment whose scorer sets an alarm.

Apart from its tests: a process of its own imports this module, and theirs loads `datasets`.
"""

import signal

import tinkergym as tg


class Graded(tg.SingleTurnEnv):
    """Scores with an alarm, as many graders do, or with what it was given."""

    def __init__(self, score=None):
        super().__init__()
        self.given = score

    def ask(self, options):
        return "q"

    def score(self, answer):
        if self.given is not None:
            return self.given[0]
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(5)
        signal.alarm(0)
        return 1.0


def graded(ref):
    return Graded()
