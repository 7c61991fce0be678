"""A custom loss: what the user's function returned is checked before anything is sent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tinkergym.remote.policy_service import POLICY_ID, StubApi
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, NonFiniteLossError
from tinkergym.remote.custom_loss import loss_and_gradient
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.policy_calls import CallResult
from tinkergym.testing.bundles import byte_bundle

LOGPROBS = [[-1.0, -2.0], [-3.0]]
GRADIENT = [[0.5, 0.25], [1.0]]


@pytest.mark.parametrize("gradient", [GRADIENT, [np.array([0.5, 0.25]), (1,)]])
def test_takes_numbers_of_any_kind(gradient):
    assert loss_and_gradient((np.float32(2.0), gradient), LOGPROBS) == (2.0, GRADIENT)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_refuses_loss_that_is_not_finite(loss):
    with pytest.raises(NonFiniteLossError):
        loss_and_gradient((loss, GRADIENT), LOGPROBS)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (1.0, "float"),
        (None, "return"),
        ((1.0, GRADIENT, 3), "3"),
        (("x", GRADIENT), "str"),
        ((1.0, 2.0), "float"),
        ((1.0, "ab"), "ab"),
        ((1.0, [[0.5, 0.25]]), "1 entries"),
        ((1.0, [[0.5], [1.0]]), "sequence 0"),
        ((1.0, [[0.5, 0.25], [math.nan]]), "logprob 0 of sequence 1"),
        ((1.0, [[0.5, math.inf], [1.0]]), "logprob 1 of sequence 0"),
        ((1.0, [[0.5, None], [1.0]]), "logprob 1 of sequence 0"),
    ],
)
def test_refuses_other_forms_by_name(returned, named):
    with pytest.raises(InvalidRequestError) as refused:
        loss_and_gradient(returned, LOGPROBS)
    assert refused.value.field == "gradient"
    assert named in str(refused.value)


class _Logprobs(StubApi):
    """Answers every call with logprobs of one sequence."""

    def __init__(self):
        super().__init__()
        call = self.service.call
        self.service.call = lambda method, path, **rest: (
            _answer(path) if path.rpartition("/")[2].isdigit() else call(method, path, **rest)
        )


def _answer(path):
    result = CallResult(logprobs=[[-1.0]], loss=1.0)
    seq = path.rpartition("/")[2]
    return f'{{"seq": {seq}, "done": true, "state": "running", "result": {result.model_dump_json()}}}'


def test_returns_future_of_a_custom_loss():
    api = _Logprobs()
    known = {"created_at": 0.0, "updated_at": 0.0, "attempt": 1}
    view = JobView(job_id=POLICY_ID, spec=PolicySpec(), state="running", **known)
    sequence = {"token_ids": [5, 6, 7], "loss_mask": [False, False, True]}
    with TrainingPolicy(api, view, Renderer.from_bundle(byte_bundle())) as policy:
        assert policy.forward_backward_custom([sequence], lambda _: (3.0, [[0.5]])).result(60).loss == 3.0
        with pytest.raises(NonFiniteLossError):
            policy.forward_backward_custom([sequence], lambda _: (math.nan, [[0.5]]))
    ops = [call.op for call in api.service.stored]
    assert ops == ["logprobs", "forward_backward", "logprobs"]
    assert api.service.stored[1].sequences[0].advantage == [0.0, 0.0, -0.5]
