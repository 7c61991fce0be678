import json
import time

import pytest

from tinkergym.schema.events import ErrorView

pytestmark = pytest.mark.service


def error_of(response):
    return response.json()["error"]


@pytest.fixture
def job_id(client, spec):
    return client.post("/v1/jobs", json=spec).json()["job_id"]


def request_for(policy, request_id="r1", **more):
    return {"request_id": request_id, "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4, **more}


def test_answers_batch_for_several_models_by_their_pools(gateway, client, job_id, spec, start_pool):
    pools = [start_pool("pool-1", "nano", "t1"), start_pool("pool-2", "tiny", "t2")]
    tiny_job = client.post("/v1/jobs", json={**spec, "model": "tiny"}).json()["job_id"]
    asked = [request_for(["nano", job_id, tiny_job][number % 3], f"r{number}") for number in range(30)]
    response = client.post("/v1/sample", json={"requests": asked})
    answers = {answer["request_id"]: answer["from"] for answer in map(json.loads, response.text.splitlines())}
    assert answers == {f"r{number}": "t2" if number % 3 == 2 else "t1" for number in range(30)}
    assert [len(pool.asked[0][2]["requests"]) for pool in pools] == [20, 10]


def test_samples_unlisted_model_that_jobs_may_name(owner, client, start_pool):
    # "unlisted" stands for a folder: the catalog knows it, and no list has it.
    assert owner.get("/v1/renderer", params={"model": "unlisted/"}).json()["model"] == "unlisted"
    asked = {"requests": [request_for("unlisted")]}
    waits = owner.post("/v1/sample", json=asked)
    assert (waits.status_code, error_of(waits)["type"]) == (503, "ServiceUnavailableError")
    start_pool("pool-9", "unlisted", "t9")
    assert json.loads(owner.post("/v1/sample", json=asked).text)["from"] == "t9"
    # Also while it is loaded, it is nothing to others.
    assert client.post("/v1/sample", json=asked).status_code == 404


@pytest.mark.parametrize("model", ["unlisted", "gpt-9", "/etc", "/no/such/folder", "some/hub-id"])
def test_hides_unlisted_models_from_all_but_the_owner(client, spec, model):
    teacher = {**spec, "kind": "distillation", "teacher": model}
    answers = [
        client.get("/v1/renderer", params={"model": model}),
        client.post("/v1/jobs", json={**spec, "model": model}),
        client.post("/v1/jobs", json=teacher),
    ]
    sampled = client.post("/v1/sample", json={"requests": [request_for(model)]})
    assert (sampled.status_code, error_of(sampled)["field"]) == (404, "policy")
    for answer, field in zip(answers, ("model", "model", "teacher"), strict=True):
        error = error_of(answer)
        assert (answer.status_code, error["type"], error["field"]) == (422, "UnknownModelError", field)
        # The same whatever stands there.
        assert error["message"].replace(model, "") == "the service does not offer the model ''"


def test_lets_owner_train_models_that_are_not_listed(owner, spec):
    assert owner.post("/v1/jobs", json={**spec, "model": "unlisted"}).status_code == 201


@pytest.mark.parametrize("policy", ["job-of-bob", "gpt-9", "/etc", ""])
def test_refuses_to_sample_policy_of_another_tenant(gateway, client, spec, start_pool, policy):
    pool = start_pool()
    if policy == "job-of-bob":
        with gateway.client("bob") as bob:
            policy = bob.post("/v1/jobs", json=spec).json()["job_id"]
    response = client.post("/v1/sample", json={"requests": [request_for("nano"), request_for(policy, "r2")]})
    assert (response.status_code, error_of(response)["field"]) == (404, "policy")
    assert pool.asked == []


def test_requests_a_pool_for_model_and_tells_client_to_retry(gateway, client, job_id):
    response = client.post("/v1/sample", json={"requests": [request_for(job_id)]})
    assert (response.status_code, error_of(response)["type"]) == (503, "ServiceUnavailableError")
    assert "nano" in gateway.store.service().wanted_pools(now=time.time())


def test_tells_while_recent_why_a_models_pool_does_not_start(gateway, client):
    service = gateway.store.service()
    error = ErrorView(
        type="ConfigError",
        message="no GPU",
        hint="set placement.gpus=0",
        field="placement.gpus",
        code="no_gpu",
    )
    try:
        service.note_refusal("nano", error, now=time.time())
        response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
        assert error_of(response) == error.model_dump()
        assert "nano" in service.wanted_pools(now=time.time())  # so it is tried again
        service.note_refusal("nano", error, now=time.time() - 3600)
        response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
        assert response.status_code == 503
    finally:
        service.forget_refusals()
