import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.evaluation.statistics import (
    clustered_interval,
    mean_interval,
    paired_bootstrap,
    pass_at_k,
    pass_hat_k,
    share_interval,
)


def test_the_mean_interval_is_students():
    # t(0.975, 4) = 2.776, t(0.975, 199) = 1.972
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert high - 3 == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=5e-3)
    assert 3 - low == pytest.approx(high - 3)
    low, high = mean_interval([0.0, 1.0] * 100)
    assert high - 0.5 == pytest.approx(1.972 * math.sqrt(0.25 * 200 / 199 / 200), rel=1e-3)
    assert mean_interval([1.0]) == (-math.inf, math.inf)


def test_the_share_interval_is_wilsons():
    assert share_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))
    assert share_interval(10, 10) == (pytest.approx(0.7225, abs=1e-3), pytest.approx(1.0))
    low, high = share_interval(140, 200)
    assert (low, high) == (pytest.approx(0.6332, abs=1e-3), pytest.approx(0.7593, abs=1e-3))


def test_answers_to_the_same_task_count_for_less_than_answers_to_different_ones():
    alike = [[1.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]
    single = [[value] for task in alike for value in task]
    low, high = clustered_interval(alike)
    assert high - low > 1.5 * (clustered_interval(single)[1] - clustered_interval(single)[0])
    # Copies of an answer teach nothing: five tasks are five tasks.
    assert clustered_interval(alike) == pytest.approx(mean_interval([1.0, 0.0, 1.0, 0.0, 0.0]))


def test_a_clustered_interval_covers_the_mean_about_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        tasks = rng.normal(size=20)
        low, high = clustered_interval([list(task + rng.normal(size=4)) for task in tasks])
        covered += low <= 0.0 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_one_cluster_says_nothing_about_others():
    assert clustered_interval([[1.0, 2.0], []]) == (-math.inf, math.inf)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_k_answers_with_a_success_among_them(case):
    samples, successes, k = case
    answers = [True] * successes + [False] * (samples - successes)
    chosen = list(itertools.combinations(answers, k))
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_hat_k_is_the_share_of_k_answers_that_are_all_successes(case):
    samples, successes, k = case
    answers = [True] * successes + [False] * (samples - successes)
    chosen = list(itertools.combinations(answers, k))
    assert pass_hat_k(samples, successes, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(("samples", "successes", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_what_cannot_be_told_of_k_answers_is_refused(estimate, samples, successes, k):
    with pytest.raises(ValueError, match="cannot be estimated"):
        estimate(samples, successes, k)


def test_a_clear_difference_is_found_and_pairing_finds_it_below_the_noise_of_tasks():
    rng = np.random.default_rng(1)
    tasks = rng.normal(scale=10.0, size=60)
    found = paired_bootstrap([(task, task + 0.5 + rng.normal(scale=0.5)) for task in tasks])
    assert found.low < 0.5 < found.high
    assert 0.0 < found.p < 0.01
    assert found.tasks == 60


def test_equal_policies_differ_by_nothing():
    found = paired_bootstrap([(value, value) for value in (0.0, 1.0, 0.5)])
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_under_no_difference_small_p_values_are_rare():
    rng = np.random.default_rng(2)
    p_values = [
        paired_bootstrap([tuple(pair) for pair in rng.normal(size=(40, 2))], resamples=300).p
        for _ in range(200)
    ]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.10


def test_one_task_is_not_enough_to_compare():
    with pytest.raises(ValueError, match="two tasks"):
        paired_bootstrap([(0.0, 1.0)])
