import math

import pytest
from pydantic import ValidationError

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluation import EvaluationRequest
from tinkergym.schema.jobs.parts import Sampling
from tinkergym.schema.parsing import parse, parse_spec
from tinkergym.schema.sampling import SampleRequest

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "structured"])
def test_rejects_in_training_what_would_break_importance_ratios(name):
    """A learner that knows nothing of the cut would divide by logprobs of another distribution."""
    for write in (
        lambda: Sampling(**{name: 1}),
        lambda: parse_spec({**GOOD, "sampling": {name: 1}}),
        lambda: parse_spec({**GOOD, "kind": "rl", "sampling": {"temperature": 1.0, name: 0.9}}),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            write()
        assert caught.value.field.endswith(name)
        assert "policy.evaluate take top_p, top_k and structured" in caught.value.hint
    assert not hasattr(tg.GRPO(), name)


@pytest.mark.parametrize(
    "cut",
    [
        *({"top_p": 0.0}, {"top_p": 1.01}, {"top_p": -1}, {"top_p": math.nan}, {"top_k": -1}, {"min_p": 0.1}),
        *({"prompt_entropies": True}, {"top_prompt_logprobs": 1}),
        {"top_prompt_logprobs": 21, "prompt_logprobs": True},
    ],
)
def test_refuses_settings_out_of_range_or_without_effect(cut):
    wanted = {"request_id": "r", "policy": "p", "prompt_ids": [1], "max_tokens": 1}
    with pytest.raises(InvalidRequestError) as caught:
        parse(SampleRequest, wanted | cut)
    assert caught.value.field == next(iter(cut))


def test_says_whether_tokens_come_from_part_of_their_distribution():
    wanted = {"request_id": "r", "policy": "p", "prompt_ids": [1], "max_tokens": 1}
    cuts = [{}, {"top_p": 1.0, "top_k": 0}, {"top_p": 0.9}, {"top_k": 1}]
    assert [SampleRequest(**wanted, **cut).is_cut for cut in cuts] == [False, False, True, True]


def test_refuses_evaluations_at_temperatures_that_cannot_be_sampled():
    with pytest.raises(ValidationError) as refused:
        EvaluationRequest.model_validate({"temperature": 2.0**63})
    assert ("temperature",) in {error["loc"] for error in refused.value.errors()}
