import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.learner.shaping import overlong_penalty, returns_to_go


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (12, 0), (13, 0.5), (14, 1.0), (16, 2.0), (20, 2.0)]
)
def test_the_penalty_grows_over_the_buffer_and_no_further(tokens, expected):
    assert overlong_penalty(tokens, most_tokens=16, buffer_tokens=4, penalty=2.0) == expected


def test_it_is_dapos_soft_overlong_punishment():
    """The paper's three cases, with L_max = 20 and L_cache = 8."""
    for length in range(30):
        if length <= 12:
            paper = 0.0
        elif length <= 20:
            paper = (12 - length) / 8
        else:
            paper = -1.0
        assert -overlong_penalty(length, most_tokens=20, buffer_tokens=8, penalty=1.0) == paper


def test_without_a_buffer_there_is_no_penalty():
    assert overlong_penalty(100, most_tokens=10, buffer_tokens=0, penalty=1.0) == 0.0


def test_returns_to_go_by_hand():
    assert returns_to_go([1.0, 0.0, 4.0], discount=0.5) == [2.0, 2.0, 4.0]
    assert returns_to_go([], discount=0.5) == []


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.1, 1.0))
def test_the_first_return_to_go_is_the_discounted_sum(rewards, discount):
    found = returns_to_go(rewards, discount=discount)
    assert found[0] == pytest.approx(sum(r * discount**k for k, r in enumerate(rewards)), abs=1e-9)
    assert found[-1] == rewards[-1]
