"""What each route answers to a read-only, a foreign and a revoked key, over all routes of the application."""

import base64
import sqlite3

import pytest

from backend.gateway.key_rights import READS, STARTS
from tests.backend.gateway import test_app
from tests.backend.gateway.test_app import OF_SESSIONS, OPEN, PAGES, every_route, filled, routes_of
from tests.backend.vlm import picture

pytestmark = pytest.mark.service

CHANGES = {
    ("POST", "/v1/evaluations"),
    ("PUT", "/v1/images/{sha256}"),
    ("POST", "/v1/jobs"),
    ("DELETE", "/v1/jobs/{job_id}"),
    ("POST", "/v1/jobs/{job_id}/cancel"),
    ("POST", "/v1/jobs/{job_id}/labels"),
    ("POST", "/v1/jobs/{job_id}/pause"),
    ("POST", "/v1/jobs/{job_id}/resume"),
    ("POST", "/v1/jobs/{job_id}/update"),
    ("POST", "/v1/jobs/{job_id}/crossplay"),
    ("POST", "/v1/jobs/{job_id}/episodes/{episode_id}/branch"),
    ("POST", "/v1/jobs/{job_id}/episodes/lease"),
    ("POST", "/v1/jobs/{job_id}/episodes/submit"),
    ("POST", "/v1/jobs/{job_id}/sessions"),
    ("PUT", "/v1/data/chunks/{sha256}"),
    ("PUT", "/v1/adapters/parts/{sha256}"),
    ("POST", "/v1/adapters"),
    ("POST", "/v1/data"),
    ("POST", "/v1/policies/{policy_id}/calls"),
    ("PUT", "/v1/names/{name}"),
    ("DELETE", "/v1/names/{name}"),
}
LOGIN = ("POST", "/dashboard/login")
SAMPLE = {"requests": [{"request_id": "r", "policy": "nano", "prompt_ids": [1], "max_tokens": 1}]}
_OF_KEYS = "tenants", "api_keys", "sessions"
SECRET = "ada-alone-knows-this"


def body_of(path, spec, job_id):
    return {"/v1/sample": SAMPLE, "/v1/jobs": spec}.get(path, test_app.body_of(path, job_id))


def everything(gateway):
    """Return all rows but those of keys, browsers' sessions and tenants, and all files with their sizes."""
    folder = gateway.config.data_dir
    (file,) = folder.glob("*.sqlite3")
    with sqlite3.connect(file) as connection:
        rows = [row for row in connection.iterdump() if not any(f'"{name}"' in row for name in _OF_KEYS)]
    files = {each: each.stat().st_size for each in folder.rglob("*") if each.is_file()}
    return rows, {each: size for each, size in files.items() if ".sqlite3" not in each.name}


def ask_all(gateway, key, job_id, spec):
    """Send a plausible request to every route; yield each with its response."""
    with gateway.client(tenant="") as client:
        for method, path in routes_of(gateway.app):
            body = None if method == "GET" else body_of(path, spec, job_id)
            is_form = path.startswith("/dashboard")
            headers = {"Authorization": f"Bearer {key}"}
            yield (
                (method, path),
                client.request(
                    method,
                    filled(path, job_id),
                    headers=headers,
                    json=None if is_form else body,
                    data={"key": key} if is_form and method == "POST" else None,
                    params={"model": "nano"} if path == "/v1/renderer" and method == "GET" else None,
                ),
            )


@pytest.fixture
def job_id(client, spec, start_pool):
    start_pool()
    job_id = client.post("/v1/jobs", json={**spec, "name": SECRET}).json()["job_id"]
    client.post(f"/v1/jobs/{job_id}/cancel")  # else its events would not end
    client.get("/v1/health")  # makes the operator's key
    return job_id


def test_knows_of_every_route_whether_it_changes_anything(gateway, client):
    routes = set(every_route(client))
    assert set(routes_of(gateway.app)) - routes == PAGES | OF_SESSIONS
    reads = {route for route in routes if route[0] == "GET"} | READS
    assert routes == reads | CHANGES
    assert not reads & CHANGES


def test_changes_nothing_with_a_read_only_key(gateway, job_id, spec):
    key = gateway.store.keys.create(gateway.tenants["ada"], "dashboard", read_only=True)
    before = everything(gateway)
    answers = dict(ask_all(gateway, key, job_id, spec))
    refused = {
        route
        for route, answer in answers.items()
        if answer.status_code == 403 and answer.json()["error"]["type"] == "ReadOnlyKeyError"
    }
    assert refused == CHANGES
    assert {answers[route].status_code for route in OF_SESSIONS} == {401}
    assert answers["POST", "/v1/sample"].status_code == 200
    assert answers["GET", "/v1/jobs/{job_id}"].json()["spec"]["name"] == SECRET
    shown = f"data:image/png;base64,{base64.b64encode(picture(1).data).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": shown}}]
    asked = {"model": "nano", "messages": [{"role": "user", "content": parts}]}
    with gateway.client(tenant="") as client:
        client.headers["Authorization"] = f"Bearer {key}"
        assert client.post("/openai/v1/chat/completions", json=asked).status_code == 400  # has no images
    assert everything(gateway) == before


def test_starts_no_job_with_a_key_that_has_a_rate(gateway, job_id, spec):
    key = gateway.store.keys.create(gateway.tenants["ada"], "chatbot", tokens_per_minute=1000)
    with gateway.client(tenant="") as client:
        client.headers["Authorization"] = f"Bearer {key}"
        answers = [
            client.request(verb, filled(path, job_id), json=body_of(path, spec, job_id))
            for verb, path in STARTS
        ]
        several = [{**SAMPLE["requests"][0], "request_id": each, "max_tokens": 1001} for each in "ab"]
        too_many = client.post("/v1/sample", json={"requests": several})
        assert client.post("/v1/sample", json=SAMPLE).status_code == 200
    assert {answer.json()["error"]["type"] for answer in answers} == {"LimitedKeyError"}
    assert {answer.status_code for answer in answers} == {403}
    assert too_many.json()["error"]["code"] == "beyond_rate"


def test_shows_and_changes_nothing_with_a_revoked_key(gateway, job_id, spec):
    keys = gateway.store.keys
    key = keys.create(gateway.tenants["ada"], "lost")
    keys.revoke(keys.id_of(key))
    before = everything(gateway)
    statuses = {route: answer.status_code for route, answer in ask_all(gateway, key, job_id, spec)}
    assert {route for route, status in statuses.items() if status != 401} == OPEN | PAGES - {LOGIN}
    assert everything(gateway) == before


def test_shows_and_changes_nothing_with_a_foreign_key(gateway, client, job_id, spec):
    before, shown = everything(gateway), client.get(f"/v1/jobs/{job_id}").json()
    for route, answer in ask_all(gateway, gateway.keys["bob"], job_id, spec):
        assert SECRET not in answer.text, route
    rows, files = everything(gateway)
    # Bob's own job is new; nothing that was there is gone or different.
    assert set(before[0]) - set(rows) <= {row for row in before[0] if "sqlite_sequence" in row}
    assert files == before[1]
    assert client.get(f"/v1/jobs/{job_id}").json() == shown
