import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.advantages import group_advantages, returns_to_go, turn_advantages
from tinkergym.errors import InvalidRequestError


def test_subtracts_group_mean_from_each_return():
    result = group_advantages([1, 0, 0, 3, 5, 4], [0, 0, 0, 1, 1, 1], [True] * 6)
    np.testing.assert_allclose(result.values, [2 / 3, -1 / 3, -1 / 3, -1, 1, 0], atol=1e-12)
    assert result.included.all()
    assert (result.zero_variance_groups, result.broken_groups, result.failed_episodes) == (0, 0, 0)


def test_divides_by_the_sample_deviation_of_the_group():
    result = group_advantages([1, 3, 10, 10, 40], [0, 0, 1, 1, 1], [True] * 5, normalize="std")
    # Group 0: mean 2, deviation sqrt(2). Group 1: mean 20, deviation sqrt((100 + 100 + 400) / 2).
    expected = [-1 / math.sqrt(2), 1 / math.sqrt(2), *(np.array([-10, -10, 20]) / math.sqrt(300))]
    np.testing.assert_allclose(result.values, expected, rtol=1e-5)


def test_compares_across_groups_with_the_batch_baseline():
    result = group_advantages([1, 1, 0, 0], [0, 0, 1, 1], [True] * 4, baseline="batch")
    np.testing.assert_allclose(result.values, [0.5, 0.5, -0.5, -0.5])
    assert result.zero_variance_groups == 0


def test_needs_no_siblings_with_the_batch_baseline():
    result = group_advantages([1, 0], [0, 1], [True, True], baseline="batch")
    np.testing.assert_allclose(result.values, [0.5, -0.5])


def test_accepts_groups_that_do_not_lie_together():
    result = group_advantages([1, 10, 0, 20], [5, 2, 5, 2], [True] * 4)
    np.testing.assert_allclose(result.values, [0.5, -5, -0.5, 5])


def test_excludes_failed_episode_from_baseline_and_training():
    result = group_advantages([1, 0, math.nan], [0, 0, 0], [True, True, False])
    np.testing.assert_allclose(result.values, [0.5, -0.5, 0.0])
    assert result.included.tolist() == [True, True, False]
    assert result.failed_episodes == 1
    assert result.broken_groups == 0


@pytest.mark.parametrize("baseline", ["group", "batch"])
def test_breaks_and_counts_group_left_with_one_episode(baseline):
    result = group_advantages([1, 0, 0], [0, 0, 0], [True, False, False], baseline=baseline)
    assert not result.values.any()
    assert not result.included.any()
    assert result.broken_groups == 1


def test_gives_and_counts_exactly_zero_for_equal_returns():
    # The mean of three 0.1 is not 0.1 in floating point.
    result = group_advantages([0.1, 0.1, 0.1, 1, 0], [0, 0, 0, 1, 1], [True] * 5, normalize="std")
    assert result.values[:3].tolist() == [0.0, 0.0, 0.0]
    assert result.zero_variance_groups == 1
    assert result.included.all()


def test_shuffles_only_completed_returns_repeatably_by_seed():
    returns, groups, completed = list(range(20)), [0] * 20, [True] * 18 + [False] * 2

    def shuffled(seed: int) -> np.ndarray:
        return group_advantages(returns, groups, completed, shuffle=np.random.default_rng(seed)).values

    plain = group_advantages(returns, groups, completed).values
    assert shuffled(1).tolist() == shuffled(1).tolist() != plain.tolist()
    assert sorted(shuffled(1)) == pytest.approx(sorted(plain))
    assert shuffled(1)[18:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("how", ["episodes", "turns"])
def test_shuffles_nothing_into_what_cannot_be_compared(how):
    returns, groups, strata = [*range(10), *range(100, 110)], [0] * 10 + [1] * 10, [7] * 10 + [3] * 10
    settings = {"shuffle": np.random.default_rng(1), "strata": strata}
    if how == "episodes":
        values = group_advantages(returns, groups, [True] * 20, **settings).values
    else:
        turns, _ = turn_advantages([[one] for one in returns], groups, [True] * 20, **settings)
        values = np.concatenate(turns)
    expected = [one - 4.5 for one in range(10)]
    for own in (values[:10], values[10:]):
        assert own.tolist() != expected
        assert sorted(own) == expected


def test_gives_no_advantage_without_any_episode():
    assert group_advantages([], [], []).values.tolist() == []
    assert group_advantages([], [], [], baseline="batch").values.tolist() == []


def test_rejects_return_that_is_not_finite():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "returns"):
        group_advantages([math.nan, 1], [0, 0], [True, True])


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_sums_advantages_of_every_group_to_zero(episodes):
    returns, groups, completed = zip(*episodes, strict=True)
    result = group_advantages(returns, groups, completed)
    for group in set(groups):
        assert abs(result.values[np.asarray(groups) == group].sum()) < 1e-9
    assert not result.values[~result.included].any()


# --- other comparisons -----------------------------------------------------------------------------------


def test_compares_with_the_mean_of_others_by_leave_one_out():
    result = group_advantages([1, 0, 0, 3, 5], [0, 0, 0, 1, 1], [True] * 5, baseline="leave_one_out")
    np.testing.assert_allclose(result.values, [1.0, -0.5, -0.5, -2.0, 2.0])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_scales_leave_one_out_from_the_group_mean(returns):
    args = (returns, [0] * len(returns), [True] * len(returns))
    loo = group_advantages(*args, baseline="leave_one_out").values
    others = [np.mean(returns[:i] + returns[i + 1 :]) for i in range(len(returns))]
    np.testing.assert_allclose(loo, np.asarray(returns) - others, atol=1e-9)
    n = len(returns)
    np.testing.assert_allclose(loo, n / (n - 1) * group_advantages(*args).values, atol=1e-9)


def test_brings_batch_to_deviation_one_by_reinforce_plus_plus():
    returns = [1.0, 0.0, 4.0, 3.0]
    result = group_advantages(returns, [0, 1, 2, 3], [True] * 4, baseline="batch", normalize="batch_std")
    expected = (np.asarray(returns) - np.mean(returns)) / np.std(returns, ddof=1)
    np.testing.assert_allclose(result.values, expected, rtol=1e-5)


def test_divides_by_deviation_of_all_differences_with_group_baselines():
    result = group_advantages(
        [1, 3, 10, 10, 0, 6], [0, 0, 1, 1, 2, 2], [True] * 6, baseline="group", normalize="batch_std"
    )
    centred = np.array([-1, 1, 0, 0, -3, 3.0])
    np.testing.assert_allclose(result.values, centred / np.std(centred, ddof=1), rtol=1e-5)
    assert result.values[2:4].tolist() == [0.0, 0.0]  # exactly: an agreeing group has no gradient
    assert result.zero_variance_groups == 1


@pytest.mark.parametrize("baseline", ["group", "leave_one_out", "batch"])
@pytest.mark.parametrize("normalize", ["none", "std", "batch_std"])
def test_gives_exactly_zero_for_equal_returns_under_every_comparison(baseline, normalize):
    result = group_advantages([0.1] * 3, [0] * 3, [True] * 3, baseline=baseline, normalize=normalize)
    assert result.values.tolist() == [0.0] * 3
    turns, _ = turn_advantages([[0.1, 0.1]] * 3, [0] * 3, [True] * 3, baseline=baseline, normalize=normalize)
    assert not np.concatenate(turns).any()


@pytest.mark.parametrize("baseline", ["group", "leave_one_out", "batch"])
@pytest.mark.parametrize("normalize", ["none", "std", "batch_std"])
@pytest.mark.parametrize("returns", [[0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [1e9 + 1e-7, 1e9]])
def test_treats_returns_as_equal_up_to_rounding(returns, baseline, normalize):
    assert returns[0] != returns[1]
    result = group_advantages(returns, [0, 0], [True] * 2, baseline=baseline, normalize=normalize)
    assert (result.values.tolist(), result.zero_variance_groups) == ([0.0, 0.0], 1)
    turns, episodes = turn_advantages(
        [[r, 1.0] for r in returns], [0, 0], [True] * 2, baseline="group", normalize=normalize
    )
    assert ([part.tolist() for part in turns], episodes.zero_variance_groups) == ([[0.0, 0.0]] * 2, 1)


@pytest.mark.parametrize("returns", [[1e-9, 0.0], [1e9 + 1.0, 1e9]])
def test_learns_from_small_differences_that_are_no_rounding(returns):
    result = group_advantages(returns, [0, 0], [True] * 2)
    np.testing.assert_allclose(result.values, [(returns[0] - returns[1]) / 2, (returns[1] - returns[0]) / 2])
    assert result.zero_variance_groups == 0


def test_gives_zero_advantage_to_earning_batch_mean_up_to_rounding():
    result = group_advantages([0.3, 0.1 + 0.2, 0.2, 0.4], [0, 0, 1, 1], [True] * 4, baseline="batch")
    assert result.values[:2].tolist() == [0.0, 0.0]
    assert result.zero_variance_groups == 1


def test_takes_batch_deviation_of_the_completed_episodes():
    completed = [True, True, False, True, True, False]
    result = group_advantages(
        [1.0, 3.0, 50.0, 7.0, 2.0, math.nan], [0, 0, 0, 1, 1, 1], completed, normalize="batch_std"
    )
    centred = np.array([-1.0, 1.0, 2.5, -2.5])
    expected = centred / (np.sqrt((centred**2).sum() / 3) + 1e-6)
    np.testing.assert_allclose(result.values, [*expected[:2], 0.0, *expected[2:], 0.0], rtol=1e-12)
    turns, _ = turn_advantages(
        [[1.0, 5.0], [3.0], [50.0], [7.0], [2.0], []],
        [0, 0, 0, 1, 1, 1],
        completed,
        normalize="batch_std",
    )
    # The second turn of the first episode has no sibling: nothing is compared with it, nor does it count.
    np.testing.assert_allclose(
        np.concatenate(turns), [expected[0], 0.0, expected[1], 0.0, *expected[2:]], rtol=1e-12
    )


# --- turns -----------------------------------------------------------------------------------------------


def test_compares_turns_with_the_same_turn_of_siblings():
    turns, episodes = turn_advantages([[3, 1], [1, 5], [2]], [0, 0, 0], [True] * 3)
    assert [part.tolist() for part in turns] == [[1.0, -2.0], [-1.0, 2.0], [0.0]]
    assert episodes.included.all()
    assert episodes.lone_turns == 0


def test_gives_and_counts_zero_advantage_to_turn_without_siblings():
    turns, episodes = turn_advantages([[1, 7], [0]], [0, 0], [True, True])
    assert [part.tolist() for part in turns] == [[0.5, 0.0], [-0.5]]
    assert episodes.lone_turns == 1


def test_compares_failed_episodes_turns_with_nothing():
    turns, episodes = turn_advantages([[1], [0], [], [math.nan]], [0] * 4, [True, True, False, False])
    assert [part.tolist() for part in turns] == [[0.5], [-0.5], [], [0.0]]
    assert episodes.included.tolist() == [True, True, False, False]
    assert episodes.failed_episodes == 2
    _, lonely = turn_advantages([[1], [0]], [0, 0], [True, False])
    assert lonely.broken_groups == 1
    assert not lonely.included.any()


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.integers(0, 3), st.booleans()), min_size=1, max_size=20),
    st.sampled_from(["group", "leave_one_out", "batch"]),
    st.sampled_from(["none", "std", "batch_std"]),
)
def test_credits_episodes_of_one_turn_equally_by_both_kinds(episodes, baseline, normalize):
    returns, groups, completed = zip(*episodes, strict=True)
    whole = group_advantages(returns, groups, completed, baseline=baseline, normalize=normalize)
    turns, by_turn = turn_advantages(
        [[r] for r in returns], groups, completed, baseline=baseline, normalize=normalize
    )
    np.testing.assert_array_equal(np.concatenate(turns), whole.values)
    assert by_turn.included.tolist() == whole.included.tolist()
    assert by_turn.zero_variance_groups == whole.zero_variance_groups
    assert by_turn.broken_groups == whole.broken_groups


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=4), min_size=2, max_size=6))
def test_sums_advantages_of_each_turn_to_zero_over_group(rewards):
    turns, _ = turn_advantages(rewards, [0] * len(rewards), [True] * len(rewards))
    for number in range(4):
        assert abs(sum(part[number] for part in turns if len(part) > number)) < 1e-9


def test_takes_mean_and_deviation_of_each_kind_of_returns():
    returns, strata = [1, 3, 100, 300], [0, 0, 1, 1]
    result = group_advantages(returns, [0, 1, 2, 3], [True] * 4, baseline="batch", strata=strata)
    assert result.values.tolist() == [-1, 1, -100, 100]
    scaled = group_advantages(
        returns, [0, 1, 2, 3], [True] * 4, baseline="batch", normalize="batch_std", strata=strata
    )
    assert np.allclose(scaled.values, np.array([-1, 1, -1, 1]) / np.sqrt(2), rtol=1e-5)
    turns, _ = turn_advantages(
        [[value] for value in returns], [0, 1, 2, 3], [True] * 4, baseline="batch", strata=strata
    )
    assert [float(some[0]) for some in turns] == [-1, 1, -100, 100]


def test_compares_nothing_with_episode_alone_of_its_kind():
    result = group_advantages([1, 3, 9], [0, 1, 2], [True] * 3, baseline="batch", strata=[0, 0, 1])
    assert (result.included.tolist(), result.broken_groups) == ([True, True, False], 1)


def test_computes_returns_to_go_as_by_hand():
    assert returns_to_go([1.0, 0.0, 4.0], discount=0.5) == [2.0, 2.0, 4.0]
    assert returns_to_go([], discount=0.5) == []


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.1, 1.0))
def test_equals_discounted_sum_as_first_return_to_go(rewards, discount):
    found = returns_to_go(rewards, discount=discount)
    assert found[0] == pytest.approx(sum(r * discount**k for k, r in enumerate(rewards)), abs=1e-9)
    assert found[-1] == rewards[-1]
