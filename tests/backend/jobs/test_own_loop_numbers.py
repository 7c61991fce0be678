"""Calls whose numbers are extreme: the call is refused, and the policy goes on."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from backend.policies.pool_policy import PoolPolicy
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.policy_calls import ForwardBackward, Logprobs, OptimStep

SEQUENCE = {"token_ids": [65, 66, 67, 68]}


@pytest.fixture
def call(lab):
    """Return a function that sends calls of one policy, and returns the result of the last."""
    job_id = lab.tenant.create_job(PolicySpec(), {}).job_id
    lab.pool.start_job(job_id)
    sent = []

    def send(*calls):
        for one in calls:
            sent.append(one)
            lab.store.policy_calls().add(job_id, len(sent), one)
        lab.pool.routes.wait_for_call(job_id, len(sent), 60.0)
        return lab.store.policy_calls().result(job_id, len(sent))

    return send


def extreme(loss="ppo", **sequence):
    given = {"sampling_logprobs": [None, -1.0, -1.0, -1.0], **SEQUENCE, **sequence}
    return ForwardBackward(sequences=[given], loss=loss)


@pytest.mark.parametrize(
    "numbers",
    [
        {"sampling_logprobs": [None, -1e300, -1, -1]},
        {"sampling_logprobs": [None, 2.0, -1, -1]},
        {"reference_logprobs": [-1e300, -1, -1]},
        {"advantage": 1e300},
        {"advantage": [0.0, 1e13, 0.0, 0.0]},
        {"temperature": 1e-300},
        {"token_ids": [65, 66, 67, 2**40]},
    ],
    ids=str,
)
def test_rejects_numbers_beyond_their_bounds_by_the_schema(numbers):
    with pytest.raises(ValidationError):
        extreme(**numbers)


@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo"])
@pytest.mark.parametrize("far", [-1e6, 1.0])
def test_survives_the_most_extreme_logprobs(call, loss, far):
    known = call(Logprobs(sequences=[SEQUENCE])).logprobs
    found = call(extreme(loss, sampling_logprobs=[None, far, far, far], advantage=1e12))
    assert found.error is None or found.error.type == "NonFiniteLossError"
    assert call(Logprobs(sequences=[SEQUENCE])).logprobs == known


def test_rejects_call_whose_result_no_answer_can_hold(call, monkeypatch):
    learn = PoolPolicy.forward_backward

    def infinite(self, *arguments, **settings):
        found = learn(self, *arguments, **settings)
        found.metrics["logprob_gap_max"] = math.inf
        return found

    known = call(Logprobs(sequences=[SEQUENCE])).logprobs
    monkeypatch.setattr(PoolPolicy, "forward_backward", infinite)
    refused = call(extreme()).error
    monkeypatch.undo()
    assert refused.type == "NonFiniteLossError"
    assert "metrics.logprob_gap_max" in refused.message
    # Its gradient is gone, as after a loss that is not finite.
    assert call(OptimStep(learning_rate=1e-2)).error is not None
    assert call(Logprobs(sequences=[SEQUENCE])).logprobs == known
