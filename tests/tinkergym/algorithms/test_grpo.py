import math

import pytest

from tests.tinkergym.algorithms.episodes import credits_of
from tinkergym.algorithms import GRPO, DrGRPO

GROUPS = [0.0, 4.0], [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [-2.0, 2.0, 0.0, 0.0]),
        ({"normalize": "std"}, [-2.0 / math.sqrt(8), 2.0 / math.sqrt(8), 0.0, 0.0]),
        ({"baseline": "batch"}, [-1.5, 2.5, -0.5, -0.5]),
    ],
)
def test_compares_with_the_mean_of_the_baseline(settings, expected):
    assert credits_of(GRPO(**settings), *GROUPS) == pytest.approx(expected, rel=1e-5)


def test_compares_with_the_group_undivided():
    assert credits_of(DrGRPO(), [0.0, 4.0], [1.0, 1.0]) == [-2.0, 2.0, 0.0, 0.0]
