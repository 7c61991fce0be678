import json

import pytest

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.structured import JsonSchema, Regex


@pytest.mark.parametrize("structured", [Regex(pattern="[0-8]"), JsonSchema(json_schema={"type": "integer"})])
def test_restores_structure_after_the_wire(structured):
    request = SampleRequest(request_id="r", policy="p", prompt_ids=[1], max_tokens=1, structured=structured)
    assert SampleRequest.model_validate_json(request.model_dump_json()).structured == structured


def test_denies_leased_episodes_structure_and_left_out_tokens():
    assert not {"structured", "top_p", "top_k"} & (
        EpisodeRequest.model_fields.keys() | SeatPlan.model_fields.keys()
    )
    plan = EpisodePlan(episode_id="e", seed=0, policy="p")
    assert (plan.decoding.structured, plan.decoding.is_cut) == (None, False)


def test_limits_the_size_of_schema():
    with pytest.raises(InvalidRequestError) as caught:
        JsonSchema(json_schema={"enum": ["x" * 70_000]})
    assert caught.value.field == "JsonSchema.json_schema"
    assert json.loads(JsonSchema(json_schema={}).model_dump_json()) == {"kind": "json", "json_schema": {}}
