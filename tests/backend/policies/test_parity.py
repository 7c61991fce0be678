"""The comparison of learner and engine, by itself; jobs that it ends are in `test_rl_strategy.py`."""

from __future__ import annotations

import numpy as np
import pytest

from backend.learner.sequences import TrainSequence
from backend.policies.parity import parity
from tinkergym.errors import ParityError

SEQUENCES = [
    TrainSequence(token_ids=[1, 2, 3], loss_mask=[False, True, True], sampling_logprobs=[None, -1.0, -2.0]),
    TrainSequence(token_ids=[1, 2], loss_mask=[False, True], sampling_logprobs=[None, -3.0]),
]


def learner(*values):
    return [np.array(values[:2], dtype=np.float32), np.array(values[2:], dtype=np.float32)]


def test_reports_the_mean_and_the_largest_difference():
    found = parity(0.2, SEQUENCES, learner(-1.0, -2.25, -2.75))
    assert found == pytest.approx({"parity_mean": 0.5 / 3, "parity_max": 0.25})


def test_rejects_mean_beyond_the_threshold():
    with pytest.raises(ParityError) as caught:
        parity(0.15, SEQUENCES, learner(-1.0, -2.25, -2.75))
    assert caught.value.field == "parity_threshold"


@pytest.mark.parametrize("drift", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("allowed", [1e-3, 1e30])
def test_rejects_difference_that_is_not_finite_whatever_is_allowed(drift, allowed):
    with pytest.raises(ParityError):
        parity(allowed, SEQUENCES, learner(-1.0, drift, -3.0))


def test_compares_no_tokens_of_other_versions():
    current = [np.array([True, False]), np.array([True])]
    assert parity(1e-3, SEQUENCES, learner(-1.0, float("nan"), -3.0), current)["parity_max"] == 0.0
    nothing = [np.zeros(2, dtype=bool), np.zeros(1, dtype=bool)]
    assert parity(1e-3, SEQUENCES, learner(0.0, 0.0, 0.0), nothing) == {}
