import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.evaluation.statistics import (
    clustered_interval,
    finite_ends,
    game_bounds,
    interval_text,
    mean_interval,
    pass_at_k,
    pass_hat_k,
    share_interval,
)


def test_gives_students_interval_of_unbounded_means():
    # t(0.975, 1) = 12.7062, t(0.975, 2) = 4.3027, t(0.975, 4) = 2.7764
    for values, t in (([2.0, 4.0], 12.7062), ([2.0, 4.0, 9.0], 4.3027), ([1.0, 2.0, 3.0, 4.0, 5.0], 2.7764)):
        mean, error = np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
        assert mean_interval(values) == pytest.approx((mean - t * error, mean + t * error), rel=1e-4)
    assert mean_interval([1.0]) == (-math.inf, math.inf)


def test_gives_wilsons_interval_of_shares():
    assert share_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))
    assert share_interval(10, 10) == (pytest.approx(0.7225, abs=1e-3), pytest.approx(1.0))
    low, high = share_interval(140, 200)
    assert (low, high) == (pytest.approx(0.6332, abs=1e-3), pytest.approx(0.7593, abs=1e-3))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)])
def test_gives_wilsons_interval_of_two_kinds_of_values(low, high):
    found = mean_interval([high] * 3 + [low] * 61)
    assert found == pytest.approx([low + (high - low) * end for end in share_interval(3, 64)])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0.0, (0.0, pytest.approx(0.1072, abs=1e-3))),
        (1.0, (pytest.approx(0.8928, abs=1e-3), 1.0)),
        (-1.0, (-1.0, pytest.approx(-0.7856, abs=1e-3))),
        # Nothing is known about the spread of a score that may be anything.
        (7.5, (-math.inf, math.inf)),
        (0.5, (-math.inf, math.inf)),
    ],
)
def test_gives_equal_results_an_honest_interval(value, found):
    assert mean_interval([value] * 32) == found


def test_treats_a_game_always_won_as_one_that_may_lose():
    low, high = mean_interval([1.0] * 32, bounds=game_bounds([1.0] * 32))
    assert (low, high) == (pytest.approx(-1 + 2 * share_interval(32, 32)[0]), 1.0)
    assert game_bounds([2.0, -1.0]) is None


def test_gives_equal_partial_scores_a_width_if_bounds_are_known():
    low, high = mean_interval([0.5] * 32, bounds=(0.0, 1.0))
    assert 0.4 < low < 0.48 < 0.52 < high < 0.6


def test_stays_within_the_bounds_of_partial_scores():
    low, high = mean_interval([0.0] * 28 + [0.25, 0.25, 0.5, 1.0])
    assert 0 < low < 0.0625 < high < 0.25
    assert 0.0625 - low < high - 0.0625


def test_does_not_take_the_values_of_two_tasks_as_bounds():
    low, high = mean_interval([3.0, 5.0])
    assert (low, high) == pytest.approx((4 - 12.7062, 4 + 12.7062), rel=1e-4)


def test_counts_answers_to_one_task_for_less():
    alike = [[1.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]
    low, high = clustered_interval(alike)
    apart = clustered_interval([[value] for task in alike for value in task])
    assert high - low > 1.5 * (apart[1] - apart[0])
    # Copies of an answer teach nothing: five tasks are five tasks.
    once = mean_interval([1.0, 0.0, 1.0, 0.0, 0.0])
    assert high - low >= once[1] - once[0]


def test_learns_from_more_episodes_of_the_same_tasks():
    low, high = clustered_interval([[1.0, 0.0, 0.0, 1.0]] * 16 + [[0.0, 1.0, 0.0, 0.0]] * 16)
    once = share_interval(12, 32)
    assert high - low < 0.6 * (once[1] - once[0])


def test_counts_answers_to_one_unbounded_task_for_less():
    alike = [[10.0] * 4, [3.0] * 4, [7.0] * 4]
    assert clustered_interval(alike) == pytest.approx(mean_interval([10.0, 3.0, 7.0]))


def test_knows_nothing_of_other_tasks_from_one():
    assert clustered_interval([[1.0, 2.0], []]) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.25, 1.0), "[0.2, 1.0]"),
        ((-math.inf, 1.0), "[open, 1.0]"),
        ((0.5, math.inf), "[0.5, open]"),
        ((-math.inf, math.inf), "[unknown]"),
    ],
)
def test_shows_infinite_ends_as_open(ends, text):
    assert interval_text(*ends, ".1f") == text
    assert finite_ends(*ends) == [end if math.isfinite(end) else None for end in ends]


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_defines_pass_at_k_as_share_with_one_success(case):
    samples, successes, k = case
    answers = [True] * successes + [False] * (samples - successes)
    chosen = list(itertools.combinations(answers, k))
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_defines_pass_hat_k_as_share_with_all_successes(case):
    samples, successes, k = case
    answers = [True] * successes + [False] * (samples - successes)
    chosen = list(itertools.combinations(answers, k))
    assert pass_hat_k(samples, successes, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(("samples", "successes", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_rejects_what_cannot_be_told_of_k_answers(estimate, samples, successes, k):
    with pytest.raises(ValueError, match="cannot be estimated"):
        estimate(samples, successes, k)
