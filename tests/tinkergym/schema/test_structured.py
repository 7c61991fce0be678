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


UUID = "^[0-9a-f]{8}(-[0-9a-f]{4})?-[0-9a-f]{12}$"


def nested(levels):
    return {} if not levels else {"items": nested(levels - 1)}


def properties(count, **more):
    return {"properties": {f"k{i}": {} for i in range(count)}, **more}


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x" * 70_000]},
        nested(65),
        {"anyOf": [properties(300), properties(201)]},
        properties(65, minProperties=32),
        {"prefixItems": [{"type": "string", "maxLength": i} for i in range(17)]},
        {"prefixItems": [{"pattern": "[a-z]+" + str(i)} for i in range(33)]},
        {"patternProperties": {"a?" * 33: {}}},
    ],
)
def test_limits_what_compiling_a_schema_costs(schema):
    with pytest.raises(InvalidRequestError) as caught:
        JsonSchema(json_schema=schema)
    assert caught.value.field == "JsonSchema.json_schema"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        nested(60),
        properties(500),
        {"prefixItems": [{"type": "string", "maxLength": 80}] * 200},
        {
            "items": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "prefixItems": [{"pattern": UUID}] * 20,
        },
        {"properties": {"properties": properties(65), "pattern": {"maxLength": {}}}, "minProperties": 1},
        {"enum": [{"pattern": "a?" * 33}], "const": properties(501)},
    ],
)
def test_accepts_large_schemas(schema):
    assert json.loads(JsonSchema(json_schema=schema).model_dump_json()) == {
        "kind": "json",
        "json_schema": schema,
    }


@pytest.mark.parametrize(
    "part", ["[a-z]?", "(a|)", "(?:|a)", "(a|b){2}", "[]a?]", "(?<x>|a)", "($|a)", "(a|^)"]
)
def test_limits_quantifiers_of_a_pattern(part):
    Regex(pattern=part * 16)
    with pytest.raises(InvalidRequestError) as caught:
        Regex(pattern=part * 33)
    assert caught.value.field == "Regex.pattern"


def test_counts_no_escaped_characters_as_quantifiers():
    Regex(pattern=r"\?[*+?{\]]" * 200 + "(?:a|b)" * 200)
    Regex(pattern="[" * 4095 + "\\")
    Regex(pattern="[0-9a-f]{4}-" * 60 + "(?:[a-z]+ ){0,50}" + ".*?a" * 30)


def test_counts_what_a_repeated_group_repeats():
    Regex(pattern="(?:[a-z]*){20}")
    for group in ("(?:[a-z]*){40}", "((?:[a-z]?)){1,40}", "(?:[a-z]*){40,}"):
        with pytest.raises(InvalidRequestError):
            Regex(pattern=group)


def test_refuses_a_long_schema_without_writing_its_parts():
    long = "x" * 70_000
    for _ in range(60):
        long = {"minLength": long}
    with pytest.raises(InvalidRequestError) as caught:
        JsonSchema(json_schema={"items": long})
    assert caught.value.code == "too_long"
