"""Jobs that name an environment server, as the gateway takes or refuses them."""

import json

import pytest

from backend.external import judges, opponent_models
from backend.external.environment_tokens import fetch, remove_unused
from tinkergym.schema.jobs.parts import EnvironmentRef

pytestmark = pytest.mark.service

URL = "ws://127.0.0.1:8300"


@pytest.fixture
def allowed(gateway, monkeypatch):
    monkeypatch.setitem(gateway.config.__dict__, "environment_urls", [URL])


def remote(spec, url=URL, **changes):
    return {**spec, "environment": {"id": "tinkergym/Remote-v0", "kwargs": {"url": url, **changes}}}


def test_rejects_unlisted_server_when_the_job_is_submitted(client, spec):
    for job in (remote(spec), {**spec, "environment": {"id": URL}}):
        response = client.post("/v1/jobs", json={**job, "rollout": "server"})
        error = response.json()["error"]
        assert (response.status_code, error["field"]) == (422, "environment.kwargs.url")
        assert "environment_urls" in error["hint"]
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_shows_token_of_a_job_in_no_view_or_database(gateway, client, spec, allowed):
    body = {**remote(spec, token="a-very-secret-token"), "rollout": "server"}
    response = client.post("/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    job = response.json()
    shown = client.get("/v1/jobs").text + client.get(f"/v1/jobs/{job['job_id']}").text + json.dumps(job)
    assert "a-very-secret-token" not in shown
    stored = EnvironmentRef.model_validate(job["spec"]["environment"])
    fetched = fetch(stored, gateway.store.service().secret)
    assert fetched.kwargs == {"url": URL, "token": "a-very-secret-token"}


def test_makes_one_job_of_a_request_with_token_sent_twice(client, spec, allowed):
    body = {**remote(spec, token="a-very-secret-token"), "rollout": "server"}
    headers = {"Idempotency-Key": "once"}
    first, second = (client.post("/v1/jobs", json=body, headers=headers).json() for _ in range(2))
    assert first == second


def test_requires_no_permission_and_keeps_no_token_for_clients_play(client, spec):
    body = {**remote(spec, "ws://10.9.9.9:1", token="a-very-secret-token"), "rollout": "client"}
    job = client.post("/v1/jobs", json=body).json()
    assert job["spec"]["environment"]["kwargs"] == {"url": "ws://10.9.9.9:1"}


JUDGE = "https://judge.example:443"
KEY = "sk-a-very-secret-key"


def judged(spec, url=f"{JUDGE}/v1", **changes):
    judge = {"url": url, "model": "small", "api_key": KEY}
    environment = {**spec["environment"], "kwargs": {"judge": judge}}
    return {**spec, "environment": environment, "rollout": "server", **changes}


def test_rejects_unlisted_judge_when_the_job_is_submitted(client, spec):
    response = client.post("/v1/jobs", json=judged(spec))
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (422, "environment.kwargs.judge.url")
    assert "judge_urls" in error["hint"]
    assert KEY not in response.text


def test_hands_a_judges_key_to_the_worker_only(gateway, client, spec, monkeypatch):
    monkeypatch.setitem(gateway.config.__dict__, "judge_urls", [JUDGE])
    response = client.post("/v1/jobs", json=judged(spec))
    assert response.status_code == 201, response.text
    job = response.json()
    paths = ["/v1/jobs", *(f"/v1/jobs/{job['job_id']}{rest}" for rest in ("", "/facts"))]
    assert KEY not in "".join(client.get(path).text for path in paths) + response.text
    service = gateway.store.service()
    stored = EnvironmentRef.model_validate(job["spec"]["environment"])
    assert judges.fetch(stored, service.secret).kwargs["judge"]["api_key"] == KEY
    remove_unused(service, [stored], now=1e12)
    assert judges.fetch(stored, service.secret).kwargs["judge"]["api_key"] == KEY
    assert remove_unused(service, [], now=1e12) == 1


@pytest.mark.parametrize("where", ["client", "evaluation"])
def test_rejects_a_judges_key_that_would_be_stored_in_clear(gateway, client, spec, monkeypatch, where):
    monkeypatch.setitem(gateway.config.__dict__, "judge_urls", [JUDGE])
    body = judged(spec, rollout="client")
    if where == "evaluation":
        kwargs = body["environment"]["kwargs"]
        body = {**spec, "rollout": "server", "evaluate": [{"steps": 1, "episodes": 1, "env_kwargs": kwargs}]}
    response = client.post("/v1/jobs", json=body)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "environment.kwargs.judge.api_key"
    assert KEY not in response.text


def test_requires_listed_opponent_models_and_hides_their_keys(gateway, client, spec, monkeypatch):
    model = {"kind": "external", "url": f"{JUDGE}/v1", "model": "small", "api_key": KEY}
    body = {
        **spec,
        "environment": {"id": "board/TicTacToe-v0"},
        "agents": {"x": {"kind": "train"}, "o": model},
        "rollout": "server",
    }
    refused = client.post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "agents")
    assert "opponent_urls" in refused.json()["error"]["hint"]
    assert KEY not in refused.text
    monkeypatch.setitem(gateway.config.__dict__, "opponent_urls", [JUDGE])
    response = client.post("/v1/jobs", json=body)
    assert response.status_code == 201, response.text
    job = response.json()
    assert (
        KEY not in client.get("/v1/jobs").text + client.get(f"/v1/jobs/{job['job_id']}").text + response.text
    )
    name = job["spec"]["agents"]["o"]["api_key"]
    assert opponent_models.fetch(name, gateway.store.service().secret) == KEY
    # The scheduler keeps the key for as long as the job needs it.
    in_use = gateway.store.service().environments_in_use()
    assert name in {environment.kwargs.get("token") for environment in in_use}
