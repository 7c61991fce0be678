import numpy as np
import pytest

from tests.tinkergym.algorithms.episodes import credits_of
from tinkergym.algorithms import ReinforcePlusPlus

GROUPS = [0.0, 4.0], [1.0, 3.0]


@pytest.mark.parametrize(
    ("settings", "centred"),
    [({}, [-2.0, 2.0, -1.0, 1.0]), ({"baseline": "group", "group_size": 2}, [-2.0, 2.0, -1.0, 1.0])],
)
def test_divides_by_the_deviation_of_the_step(settings, centred):
    expected = np.array(centred) / np.std(centred, ddof=1)
    assert credits_of(ReinforcePlusPlus(**settings), *GROUPS) == pytest.approx(expected.tolist(), rel=1e-5)


def test_subtracts_the_chosen_mean():
    group, step = ([1.0, 1.0], [5.0, 3.0]), ReinforcePlusPlus(group_size=2)
    assert credits_of(step, *group)[0] < 0
    assert credits_of(step.model_copy(update={"baseline": "group"}), *group)[0] == 0
