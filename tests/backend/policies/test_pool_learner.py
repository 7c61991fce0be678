import pytest

from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.policies.pool_learner import PoolLearner


class Ranks(DataParallelLearner):
    """A group whose ranks can be lost without having been started."""

    def __init__(self):
        self.lost = self.closed = False

    @property
    def broken(self):
        return self.lost

    def close(self):
        self.closed = True


def test_replaces_a_broken_group_once_and_closes_it():
    made = []

    def make():
        made.append(Ranks())
        return made[-1]

    pool = PoolLearner(make)
    first = pool.current()
    assert pool.current() is first
    first.lost = True
    second = pool.current()
    assert second is pool.current() is made[-1]
    assert (len(made), first.closed, second.closed) == (2, True, False)
    pool.close()
    assert second.closed


def test_retries_making_a_group_that_failed_before():
    answers = [Ranks(), OSError("no"), Ranks()]

    def make():
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    pool = PoolLearner(make)
    pool.current().lost = True
    with pytest.raises(OSError, match="no"):
        pool.current()
    assert not pool.current().broken
