import math

import pytest

from tinkergym.evaluation.students_t import quantile, two_sided_p


# From the tables of the distribution.
@pytest.mark.parametrize(
    ("freedom", "t"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (10, 2.2281),
        (31, 2.0395),
        (1000, 1.9623),
    ],
)
def test_agrees_with_the_tables(freedom, t):
    assert quantile(freedom) == pytest.approx(t, abs=1e-4)
    assert two_sided_p(t, freedom) == pytest.approx(0.05, abs=1e-4)


def test_has_the_tails_of_closed_forms():
    for t in (0.0, 0.5, 3.0, 40.0):
        assert two_sided_p(-t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t))
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert two_sided_p(math.inf, 5) == 0.0
