"""Bounds of every number that a client sends or receives, from the OpenAPI document."""

import re
from urllib.parse import quote

import httpx
import pytest

pytestmark = pytest.mark.service

UNBOUNDED = {"/components/schemas/ValidationError/properties/loc/items/anyOf/1"}
"""FastAPI's own, of errors that the gateway never returns."""

VALUES = ("-1", "1e400", "nan", str(10**30), "9" * 5000, "two", "true", "1.5", "0x10", "")
"""None of them is a number within the bounds of a path or a query."""


@pytest.fixture(scope="module")
def document(running_gateway):
    return httpx.get(f"{running_gateway.url}/v1/openapi.json", trust_env=False, timeout=20).json()


def numbers(node, place=""):
    if isinstance(node, list):
        for index, part in enumerate(node):
            yield from numbers(part, f"{place}/{index}")
    elif isinstance(node, dict):
        if node.get("type") in ("integer", "number") and not {"const", "enum"} & set(node):
            yield place, node
        for name, part in node.items():
            if name != "default":
                yield from numbers(part, f"{place}/{name}")


def test_gives_every_number_a_minimum_and_maximum(document):
    found = dict(numbers(document))
    unbounded = {
        place
        for place, schema in found.items()
        if not (
            {"minimum", "exclusiveMinimum"} & set(schema) and {"maximum", "exclusiveMaximum"} & set(schema)
        )
    }
    assert unbounded == UNBOUNDED
    assert len(found) > 300


def test_describes_every_model_that_is_named(document):
    named = set(re.findall(r"'#/components/schemas/([^']+)'", repr(document)))
    assert named <= set(document["components"]["schemas"])


def parameters(document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", []):
                if any(True for _ in numbers(parameter["schema"])):
                    yield method, path, parameter


def test_rejects_numbers_in_paths_and_queries_outside_their_bounds(document, client):
    asked, answered = 0, {}
    for method, path, parameter in parameters(document):
        for value in VALUES:
            name = parameter["name"]
            if parameter["in"] == "path" and not value:
                continue  # another route
            url = re.sub(r"\{\w+\}", lambda m, n=name, v=value: quote(v) if m[0] == f"{{{n}}}" else "x", path)
            query = {name: value} if parameter["in"] == "query" else {}
            status = client.request(method, url, params=query).status_code
            asked += 1
            if status != 422:
                answered[method, path, name, value[:9]] = status
    assert answered == {}
    assert asked > 40


@pytest.mark.parametrize("number", ["10**30", "job-x@" + "9" * 30, "-1"])
def test_never_fails_internally_on_texts_in_paths(document, client, number):
    for path, operations in document["paths"].items():
        url = re.sub(r"\{\w+\}", quote(number, safe=""), path)
        for method in operations:
            assert client.request(method, url, content=b"{}").status_code < 500, (method, path)


@pytest.mark.parametrize("value", ['"2"', "true", str(10**30), "1e400", "2.5", "null", "[2]"])
def test_documents_numbers_in_a_body_as_numbers_with_bounds(client, value):
    request = f'{{"request_id": "a", "policy": "nano", "max_tokens": 1, "prompt_ids": [{value}]}}'
    bodies = {
        "/v1/policies/policy-x/calls": f'{{"seq": {value}, "call": {{"op": "publish"}}}}',
        "/v1/jobs/job-x/episodes/lease": f'{{"worker_id": "w", "max_episodes": {value}}}',
        "/v1/sample": f'{{"requests": [{request}]}}',
    }
    for path, body in bodies.items():
        answer = client.post(path, content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "InvalidRequestError"), path
