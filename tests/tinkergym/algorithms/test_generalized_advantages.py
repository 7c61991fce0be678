import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.algorithms.ppo import explained_variance, generalized_advantages, whitened
from tinkergym.errors import InvalidRequestError

finite = st.floats(-100, 100)
episodes = st.lists(st.tuples(finite, finite), min_size=1, max_size=30)
unit = st.floats(0, 1)


def test_matches_golden_values():
    # By hand: deltas 1 + 0.5 * 2 - 0.5 = 1.5, 0 + 0.5 * 4 - 2 = 0, 3 - 4 = -1; then A_t = d_t + 0.25 A_(t+1).
    found = generalized_advantages([1.0, 0.0, 3.0], [0.5, 2.0, 4.0], gamma=0.5, gae_lambda=0.5)
    np.testing.assert_allclose(found, [1.4375, -0.25, -1.0], rtol=1e-12)


def test_matches_golden_values_of_a_reward_at_the_end():
    found = generalized_advantages([0.0, 0.0, 1.0], [0.1, 0.2, 0.6], gamma=1.0, gae_lambda=0.95)
    np.testing.assert_allclose(found, [0.1 + 0.95 * 0.78, 0.4 + 0.95 * 0.4, 0.4], rtol=1e-12)


@given(episodes)
def test_equals_return_minus_value_without_discount_at_lambda_1(steps):
    rewards, values = np.asarray(steps).T
    found = generalized_advantages(rewards, values, gamma=1.0, gae_lambda=1.0)
    np.testing.assert_allclose(found, rewards[::-1].cumsum()[::-1] - values, atol=1e-9)


@given(episodes, unit)
def test_equals_surprise_of_one_step_with_lambda_0(steps, gamma):
    rewards, values = np.asarray(steps).T
    found = generalized_advantages(rewards, values, gamma=gamma, gae_lambda=0.0)
    np.testing.assert_allclose(found, rewards + gamma * np.append(values[1:], 0.0) - values, atol=1e-9)


@given(episodes, unit, unit)
def test_equals_discounted_sum_of_all_surprises(steps, gamma, gae_lambda):
    rewards, values = np.asarray(steps).T
    surprises = rewards + gamma * np.append(values[1:], 0.0) - values
    found = generalized_advantages(rewards, values, gamma=gamma, gae_lambda=gae_lambda)
    for step in range(len(steps)):
        weights = (gamma * gae_lambda) ** np.arange(len(steps) - step)
        assert found[step] == pytest.approx(float(weights @ surprises[step:]), abs=1e-8)


@given(episodes, unit, unit)
def test_leaves_no_advantage_for_right_values(steps, gamma, gae_lambda):
    rewards, _ = np.asarray(steps).T
    values, ahead = np.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        values[step] = ahead = rewards[step] + gamma * ahead
    found = generalized_advantages(rewards, values, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(found, 0.0, atol=1e-9)


def test_gives_no_advantages_to_an_episode_without_steps():
    assert len(generalized_advantages([], [], gamma=1.0, gae_lambda=1.0)) == 0


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan], [1.0, np.inf]])
def test_rejects_missing_value_or_one_not_finite(values):
    with pytest.raises(InvalidRequestError) as caught:
        generalized_advantages([0.0, 1.0], values, gamma=1.0, gae_lambda=1.0)
    assert caught.value.field == "values"


def test_whitens_a_batch_to_mean_0_and_deviation_1():
    np.testing.assert_allclose(whitened(np.array([1.0, 2.0, 3.0])), [-1.0, 0.0, 1.0], atol=1e-5)


@pytest.mark.parametrize("equal", [[], [3.0], [0.1, 0.1, 0.1]])
def test_gives_exactly_zero_for_equal_advantages(equal):
    assert whitened(np.array(equal)).tolist() == [0.0] * len(equal)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 2.0, 3.0], 1.0), ([5.0, 5.0, 5.0], 0.0), ([3.0, 2.0, 1.0], -3.0), ([1.5, 2.0, 2.5], 0.75)],
)
def test_matches_golden_values_of_the_explained_variance(values, expected):
    assert explained_variance(np.array(values), np.array([1.0, 2.0, 3.0])) == pytest.approx(expected)


def test_explains_nothing_of_equal_targets():
    assert explained_variance(np.array([1.0, 2.0]), np.array([3.0, 3.0])) is None
    assert explained_variance(np.array([]), np.array([])) is None
