"""Tests of `tinkergym.agent.environment_values`."""

import numpy as np
import pytest

from tinkergym.agent.environment_values import read_step, valid_reward, variables_in
from tinkergym.errors import InvalidRequestError
from tinkergym.trajectory.trajectory import LARGEST_REWARD, MOST_METRICS


def test_reads_numpy_flags_and_numbers():
    found = read_step("next", np.False_, np.True_, {"metrics": {"moves": np.int64(3)}})
    assert (found.terminated, found.truncated, found.ended) == (False, True, True)
    assert found.metrics == {"moves": 3.0}


@pytest.mark.parametrize("observation", [None, 7, np.zeros(3)])
def test_needs_no_observation_at_the_end(observation):
    assert read_step(observation, True, False, {}).messages == []


@pytest.mark.parametrize(
    ("flag", "info"),
    [(1, {}), ("yes", {}), (False, []), (False, {"metrics": [1.0]})],
)
def test_refuses_values_of_other_types(flag, info):
    with pytest.raises(TypeError):
        read_step("next", flag, False, info)


@pytest.mark.parametrize(
    "metrics",
    [
        {"loss": float("nan")},
        {"\ud800": 1.0},
        {"m" * 1000: 1.0},
        {str(number): 1.0 for number in range(MOST_METRICS + 1)},
    ],
)
def test_refuses_metrics_that_cannot_be_kept(metrics):
    with pytest.raises(ValueError):
        read_step("next", False, False, {"metrics": metrics})


@pytest.mark.parametrize("value", [float("inf"), "much", None, 2 * LARGEST_REWARD])
def test_refuses_rewards_that_are_no_usable_numbers(value):
    with pytest.raises(ValueError):
        valid_reward(value)


def test_reads_template_variables_and_refuses_others():
    assert variables_in({"template_variables": {"enable_thinking": False}}) == {"enable_thinking": False}
    assert variables_in(None) == {}
    with pytest.raises(TypeError):
        variables_in({"template_variables": ["enable_thinking"]})
    with pytest.raises(InvalidRequestError):
        variables_in({"template_variables": {"messages": []}})
