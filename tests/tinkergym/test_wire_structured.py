import json

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.loop.plan import EpisodePlan
from tinkergym.spec_errors import parse_spec
from tinkergym.wire import EpisodeRequest, JsonSchema, Regex, SampleRequest, Sampling

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "structured"])
def test_what_would_break_importance_ratios_is_refused_in_training_and_says_so(name):
    """A learner that knows nothing of the cut would divide by logprobs of another distribution."""
    for write in (
        lambda: Sampling(**{name: 1}),
        lambda: parse_spec({**GOOD, "sampling": {name: 1}}),
        lambda: parse_spec({**GOOD, "kind": "rl", "sampling": {"temperature": 1.0, name: 0.9}}),
    ):
        with pytest.raises(InvalidRequestError, match="refused in training") as caught:
            write()
        assert caught.value.field.endswith(name)
        assert "temperature" in caught.value.hint
    assert not hasattr(tg.GRPO(), name)


def test_a_request_for_tokens_has_no_top_p_either():
    with pytest.raises(ValueError, match="top_p"):
        SampleRequest(request_id="r", policy="p", prompt_ids=[1], max_tokens=1, top_p=0.9)


@pytest.mark.parametrize("structured", [Regex(pattern="[0-8]"), JsonSchema(json_schema={"type": "integer"})])
def test_a_structure_is_the_same_after_the_wire(structured):
    request = SampleRequest(request_id="r", policy="p", prompt_ids=[1], max_tokens=1, structured=structured)
    assert SampleRequest.model_validate_json(request.model_dump_json()).structured == structured


def test_no_leased_episode_can_have_a_structure():
    assert "structured" not in EpisodeRequest.model_fields
    assert EpisodePlan(episode_id="e", seed=0, policy="p").structured is None


def test_a_schema_has_a_largest_size():
    with pytest.raises(InvalidRequestError, match="describe less of the answer"):
        JsonSchema(json_schema={"enum": ["x" * 70_000]})
    assert json.loads(JsonSchema(json_schema={}).model_dump_json()) == {"kind": "json", "json_schema": {}}
