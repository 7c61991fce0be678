"""What a request's body may hold, and how many of them are there at once."""

import json
from contextlib import ExitStack

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
        for scheme in ("bearer", "Bearer "):  # however the key is sent
            stack.enter_context(half_a_body(gateway, "ada", 190_000, scheme))
        third = stack.enter_context(half_a_body(gateway, "ada", 190_000))
        status, headers = status_of(third)
        assert (status, b"retry-after" in headers) == (503, True)
        with gateway.client("ada") as ada, gateway.client("bob") as bob:
            # Small requests always have room.
            assert ada.post("/v1/jobs", content=b"{}").status_code == 422
            assert bob.post("/v1/sample", content=b" " * 190_000).status_code == 422
    with gateway.client("ada") as ada:
        # Those who hung up, or were answered, hold no room.
        answers = (ada.post("/v1/sample", content=b" " * 190_000).status_code for _ in range(1000))
        assert next(status for status in answers if status != 503) == 422
