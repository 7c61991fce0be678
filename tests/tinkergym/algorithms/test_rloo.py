from tests.tinkergym.algorithms.episodes import credits_of
from tinkergym.algorithms import RLOO


def test_compares_with_the_mean_of_the_others():
    assert credits_of(RLOO(), [0.0, 4.0], [3.0, 0.0, 0.0]) == [-4.0, 4.0, 3.0, -1.5, -1.5]
