import pytest
from gymnasium.spaces import Discrete

from tinkergym.spaces.choice import choose


def test_draws_value_by_spaces_own_generator_and_its_weight():
    space = Discrete(5, seed=3)
    drawn = [choose(space, [1, 4]) for _ in range(20)]
    assert set(drawn) == {1, 4}
    space.seed(3)
    assert [choose(space, [1, 4]) for _ in range(20)] == drawn
    assert {choose(space, [1, 4], [0.0, 2.0]) for _ in range(5)} == {4}


@pytest.mark.parametrize(
    ("values", "weights"),
    [([], None), (None, None), ([7], None), ([1, 2], [0, 0]), ([1, 2], [-1, 2]), ([1], [float("inf")])],
)
def test_rejects_what_cannot_be_drawn_from(values, weights):
    with pytest.raises(ValueError, check=lambda error: error.args):
        choose(Discrete(5), values, weights)
