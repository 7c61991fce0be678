"""What a request's body may hold, and how many of them are there at once."""

import json
import re
import select
from contextlib import ExitStack
from urllib.parse import quote

import httpx
import pytest

pytestmark = pytest.mark.service


def error_of(response):
    return response.json()["error"]


def half_a_body(gateway, tenant, size, scheme="Bearer"):
    """Send so much of a body that is announced as larger, and return the open connection."""
    connection = gateway.connect()
    head = (
        f"POST /v1/sample HTTP/1.1\r\nHost: localhost\r\nAuthorization: {scheme} {gateway.keys[tenant]}\r\n"
    )
    connection.sendall(head.encode() + b"Content-Length: 199000\r\n\r\n" + b" " * size)
    return connection


def status_of(connection):
    with connection.makefile("rb") as stream:
        lines = list(iter(stream.readline, b"\r\n"))
    return int(lines[0].split()[1]), {line.split(b":")[0].lower() for line in lines[1:]}


def test_refuses_large_description_before_reading_its_settings(client):
    body = json.dumps({f"k{number}": 1 for number in range(9_000)})
    response = client.post("/v1/jobs", content=body)
    assert (response.status_code, error_of(response)["type"]) == (413, "PayloadTooLargeError")


def test_explains_few_of_thousands_of_unknown_settings_and_counts_others(client, spec):
    body = {**spec, **{f"k{number}": 1 for number in range(6_000)}}
    response = client.post("/v1/jobs", json=body)
    error = error_of(response)
    assert (response.status_code, error["field"], len(error["hint"]) < 4000) == (422, "k0", True)
    assert error["hint"].endswith(", 5995 more")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sample", b'{"requests":[' + b"{}," * 30_000 + b"{}]}"),
        ("/v1/sample", b"{" + b'"a":1,' * 9_000 + b'"a":1}'),
        ("/v1/data", b'{"kind":"sft","chunks":[' + b"[]," * 30_000 + b"[]]}"),
        ("/v1/jobs/{job_id}/episodes/submit", b'{"results":[' + b"{}," * 30_000 + b"{}]}"),
    ],
)
def test_rejects_body_many_times_its_size_in_memory(client, spec, path, body):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    response = client.post(path.format(job_id=job_id), content=body)
    assert (response.status_code, error_of(response)["type"]) == (413, "PayloadTooLargeError")


def test_shares_bodies_under_way_per_key_and_lets_others_pass(gateway):
    with ExitStack() as stack:
        three = [
            stack.enter_context(half_a_body(gateway, "ada", 190_000, scheme))
            for scheme in ("bearer", "Bearer ", "Bearer")  # however the key is sent
        ]
        # Whichever is read last has no room.
        (refused, *_), _, _ = select.select(three, [], [], 60.0)
        status, headers = status_of(refused)
        assert (status, b"retry-after" in headers) == (503, True)
        with gateway.client("ada") as ada, gateway.client("bob") as bob:
            # Small requests always have room.
            assert ada.post("/v1/jobs", content=b"{}").status_code == 422
            assert bob.post("/v1/sample", content=b" " * 190_000).status_code == 422
    with gateway.client("ada") as ada:
        # Those who hung up, or were answered, hold no room.
        answers = (ada.post("/v1/sample", content=b" " * 190_000).status_code for _ in range(1000))
        assert next(status for status in answers if status != 503) == 422


UNBOUNDED = {"/components/schemas/ValidationError/properties/loc/items/anyOf/1"}
"""FastAPI's own, of errors that the gateway never returns."""

VALUES = ("-1", "1e400", "nan", str(10**30), "9" * 5000, "two", "true", "1.5", "0x10", "")
"""None of them is a number within the bounds of a path or a query."""


@pytest.fixture(scope="module")
def document(running_gateway):
    return httpx.get(f"{running_gateway.url}/v1/openapi.json", trust_env=False, timeout=120).json()


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
