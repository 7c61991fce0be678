import math

import numpy as np
import pytest

from tinkergym.evaluation.differences import paired_difference, unpaired_difference
from tinkergym.schema.events import EvaluationEvent


def test_finds_a_difference_below_the_noise_of_tasks():
    rng = np.random.default_rng(1)
    tasks = rng.normal(scale=10.0, size=60)
    found = paired_difference([(task, task + 0.5 + rng.normal(scale=0.5)) for task in tasks])
    assert found.low < 0.5 < found.high
    assert 0.0 < found.p < 0.01
    assert found.tasks == 60


def test_is_a_paired_t_test():
    pairs = [(0.0, 1.0), (0.0, 2.0), (0.0, 4.0), (0.0, 5.0), (0.0, 0.001)]
    found = paired_difference(pairs)
    values = [second for _, second in pairs]
    # t(0.975, 4) = 2.7764; the smallest difference is too small to add anything.
    half = 2.7764 * np.std(values, ddof=1) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half), abs=1e-3)


@pytest.mark.parametrize("tasks", [5, 10, 32])
def test_rejects_equal_policies_about_as_often_as_promised(tasks):
    rng = np.random.default_rng(tasks)
    p = [paired_difference([(0.0, one) for one in rng.normal(size=tasks)]).p for _ in range(600)]
    assert 0.03 <= np.mean(np.array(p) < 0.05) <= 0.07


def test_gives_small_p_exactly_when_interval_excludes_zero():
    rng = np.random.default_rng(3)
    for tasks in (2, 3, 5, 12):
        for shift in (0.0, 0.4, 1.0):
            draws = rng.normal(loc=shift, size=(40, tasks))
            found = [paired_difference([(0.0, one) for one in some]) for some in draws]
            assert all((one.p < 0.05) == (one.low > 0 or one.high < 0) for one in found)


def test_leaves_equal_results_uncertain():
    found = paired_difference([(value, value) for value in [0.0, 1.0, 0.5] * 10])
    assert (found.mean, found.p) == (0.0, 1.0)
    # With 30 tasks none of which differ, up to about a tenth may.
    assert found.high == -found.low == pytest.approx(0.098, abs=0.005)
    games = paired_difference([(-1.0, -1.0)] * 30)
    assert games.high == pytest.approx(2 * found.high)


def test_leaves_a_few_equal_differences_uncertain():
    assert paired_difference([(0.0, 1.0)] * 4).p > 0.05
    five = paired_difference([(0.0, 1.0)] * 5)
    assert (five.mean, five.high) == (1.0, 1.0)
    assert 0 < five.low < 0.5


def test_knows_nothing_if_returns_never_vary():
    found = paired_difference([(7.0, 7.0)] * 5)
    assert (found.mean, found.low, found.high) == (0.0, -math.inf, math.inf)
    assert math.isnan(found.p)


def test_covers_a_rare_difference_on_one_side():
    rng = np.random.default_rng(4)
    draws = rng.binomial(1, 0.1, size=(400, 32))
    found = [paired_difference([(0.0, float(one)) for one in some]) for some in draws]
    assert np.mean([one.low <= 0.1 <= one.high for one in found]) >= 0.92


def test_refuses_to_compare_one_task():
    with pytest.raises(ValueError, match="two tasks"):
        paired_difference([(0.0, 1.0)])


def evaluation(mean, low=None, high=None):
    return EvaluationEvent(
        name="e", step=1, policy_version=1, episodes=40, failed_episodes=0, mean=mean, low=low, high=high
    )


def test_compares_evaluations_of_runs_by_their_intervals():
    # Newcombe's example (a) of method 10: 56 of 70 against 48 of 80.
    found = unpaired_difference(evaluation(0.6, 0.4904, 0.7004), evaluation(0.8, 0.6917, 0.8769))
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=2e-3)
    assert 0.001 < found.p < 0.05
    same = unpaired_difference(evaluation(0.5, 0.4, 0.6), evaluation(0.5, 0.4, 0.6))
    assert same.p == pytest.approx(1.0)
    unknown = unpaired_difference(evaluation(0.5), evaluation(0.6, 0.4, 0.8))
    assert (unknown.low, math.isnan(unknown.p)) == (-math.inf, True)
