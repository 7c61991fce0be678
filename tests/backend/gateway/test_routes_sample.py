import json

import pytest

pytestmark = pytest.mark.service


def error_of(response):
    return response.json()["error"]


@pytest.fixture
def job_id(client, spec):
    return client.post("/v1/jobs", json=spec).json()["job_id"]


def request_for(policy, request_id="r1", **more):
    return {"request_id": request_id, "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4, **more}


def test_streams_completions_line_by_line_as_they_finish(client, job_id, start_pool):
    pool = start_pool()
    pool.gate.clear()
    batch = {"requests": [request_for(job_id, "r1"), request_for(job_id, "r2")]}
    with client.stream("POST", "/v1/sample", json=batch) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = response.iter_lines()
        assert json.loads(next(lines))["request_id"] == "r1"
        pool.gate.set()  # only now does the pool finish the second
        assert json.loads(next(lines))["request_id"] == "r2"
        assert list(lines) == []


@pytest.mark.parametrize("session_id", ["s", ""])
def test_separates_tenants_caches_whatever_session_they_name(gateway, client, start_pool, session_id):
    pool = start_pool()
    with gateway.client("bob") as bob:
        for own in (client, bob):
            own.post("/v1/sample", json={"requests": [request_for("nano", session_id=session_id)]})
    first, second = (batch["requests"][0]["session_id"].split("/") for _, _, batch in pool.asked)
    assert first[0] != second[0]
    assert first[1] == second[1] == session_id


def test_passes_top_p_and_top_k_to_the_pool(client, start_pool):
    pool = start_pool()
    asked = [request_for("nano", "r1", top_p=0.9, top_k=40), request_for("nano", "r2")]
    client.post("/v1/sample", json={"requests": asked})
    ((_, _, batch),) = pool.asked
    assert [(r["top_p"], r["top_k"]) for r in batch["requests"]] == [(0.9, 40), (1.0, 0)]


def test_answers_others_of_a_batch_with_too_many_images(client, start_pool):
    pool = start_pool()
    images = [{"sha256": "0" * 64, "start": place, "end": place + 1} for place in range(65)]
    asked = [request_for("nano", "crowded", prompt_ids=[1] * 65, images=images), request_for("nano", "r2")]
    assert client.post("/v1/sample", json={"requests": asked}).status_code == 200
    ((_, _, batch),) = pool.asked  # the pool refuses the first alone
    assert [request["request_id"] for request in batch["requests"]] == ["crowded", "r2"]


@pytest.mark.parametrize("cut", [{"top_p": 0}, {"top_p": 1.2}, {"top_k": -3}, {"min_p": 0.1}])
def test_rejects_unknown_sampling_by_name(client, start_pool, cut):
    pool = start_pool()
    response = client.post("/v1/sample", json={"requests": [request_for("nano", **cut)]})
    (name,) = cut
    assert (response.status_code, error_of(response)["type"]) == (422, "InvalidRequestError")
    assert error_of(response)["field"].endswith(name)
    assert pool.asked == []


def test_rejects_two_requests_with_one_id(client, start_pool):
    start_pool()
    response = client.post("/v1/sample", json={"requests": [request_for("nano"), request_for("nano")]})
    assert (response.status_code, error_of(response)["field"]) == (422, "requests.request_id")


def test_breaks_answer_off_when_its_key_is_revoked(gateway, client, start_pool):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", "a"), request_for("nano", "b")]}
    with client.stream("POST", "/v1/sample", json=batch) as answer:
        lines = answer.iter_lines()
        next(lines)
        gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
        assert list(lines) == []
    assert client.post("/v1/sample", json=batch).status_code == 401
