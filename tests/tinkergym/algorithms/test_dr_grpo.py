from tests.tinkergym.algorithms.episodes import credits_of
from tinkergym.algorithms import DrGRPO


def test_compares_with_the_group_undivided():
    assert credits_of(DrGRPO(), [0.0, 4.0], [1.0, 1.0]) == [-2.0, 2.0, 0.0, 0.0]
