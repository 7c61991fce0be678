import asyncio
import json
import time

import httpx
import pytest

from backend.gateway.pool_proxy import PoolProxy
from backend.store.store import PoolRecord
from backend.worker_url import unix_url
from tinkergym.schema.events import ErrorView

pytestmark = pytest.mark.service

MOST_IN_FLIGHT = 4
"""Requests for tokens, as the gateway of these tests is set."""

LEASE = {"worker_id": "w1", "max_episodes": 4, "wait_seconds": 0, "renew": ["l1"]}


def error_of(response):
    return response.json()["error"]


@pytest.fixture
def job_id(client, spec):
    return client.post("/v1/jobs", json=spec).json()["job_id"]


@pytest.fixture
def running_job(gateway, job_id):
    gateway.store.service().acquire(job_id, "pool-1", 30, now=0)
    return job_id


def request_for(policy, request_id="r1", **more):
    return {"request_id": request_id, "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4, **more}


def result_of(job_id, index=0):
    # The gateway does not read the trajectory; the pool does.
    return {"episode_id": f"{job_id}:1:{index}", "lease_id": "l1", "trajectories": [{"anything": [1, 2]}]}


def test_leases_and_results_go_to_the_pool_that_runs_the_job(client, running_job, start_pool):
    other, pool = start_pool("pool-0", token="other"), start_pool("pool-1")
    reply = client.post(f"/v1/jobs/{running_job}/episodes/lease", json=LEASE)
    assert reply.json() == {"episodes": [], "lost": ["l1"], "job_state": "running"}
    handed_in = {"worker_id": "w1", "results": [result_of(running_job, 0), result_of(running_job, 1)]}
    reply = client.post(f"/v1/jobs/{running_job}/episodes/submit", json=handed_in)
    assert reply.json() == {"verdicts": ["accepted", "accepted"]}
    assert pool.asked == [
        ("/episodes/lease", {"job_id": running_job}, {**LEASE, "leaving": False}),
        ("/episodes/submit", {"job_id": running_job}, handed_in),
    ]
    assert other.asked == []


def test_results_for_another_job_are_refused_before_a_pool_sees_them(client, spec, running_job, start_pool):
    pool = start_pool("pool-1")
    body = {"worker_id": "w1", "results": [result_of(running_job), result_of("job-of-bob")]}
    reply = client.post(f"/v1/jobs/{running_job}/episodes/submit", json=body)
    assert (reply.status_code, error_of(reply)["field"]) == (422, "results.episode_id")
    assert pool.asked == []


@pytest.mark.parametrize("body", [{}, {"results": 3}, {"results": [3]}, {"results": [{}]}])
def test_results_without_episodes_are_refused(client, running_job, body):
    reply = client.post(f"/v1/jobs/{running_job}/episodes/submit", json=body)
    assert (reply.status_code, error_of(reply)["field"].partition(".")[0]) == (422, "results")


def test_a_worker_whose_job_nobody_runs_keeps_what_it_plays_and_asks_again(client, job_id):
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    nothing = {"episodes": [], "lost": [], "job_state": "queued", "held_seconds": 0.0}
    assert reply.json() == {**nothing, "waits_for": ""}
    reply = client.post(
        f"/v1/jobs/{job_id}/episodes/submit", json={"worker_id": "w1", "results": [result_of(job_id)]}
    )
    assert (reply.status_code, error_of(reply)["type"]) == (503, "ServiceUnavailableError")
    assert reply.headers["retry-after"] == "1"


def test_a_worker_whose_job_is_in_the_queue_is_told_what_it_waits_for(gateway, client, job_id):
    gateway.store.service().explain_queue([job_id], "loading the model 'nano'")
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert reply.json()["waits_for"] == "loading the model 'nano'"


def test_a_worker_that_asks_for_a_parked_jobs_episodes_has_it_queued_again(gateway, client, job_id):
    service = gateway.store.service()
    service.park(service.acquire(job_id, "pool-1", 30, now=0), "waits for its client")
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "waiting_for_client"
    # One that only says goodbye does not play.
    client.post(f"/v1/jobs/{job_id}/episodes/lease", json={**LEASE, "leaving": True})
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "waiting_for_client"
    client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


def test_a_worker_whose_job_has_ended_is_told_to_stop(client, job_id):
    client.post(f"/v1/jobs/{job_id}/cancel")
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    told = {"episodes": [], "lost": ["l1"], "job_state": "cancelled", "held_seconds": 0.0, "waits_for": ""}
    assert reply.json() == told
    body = {"worker_id": "w1", "results": [result_of(job_id), result_of(job_id, 1)]}
    reply = client.post(f"/v1/jobs/{job_id}/episodes/submit", json=body)
    assert reply.json() == {"verdicts": ["stale", "stale"]}


def test_the_episodes_that_the_service_plays_are_not_handed_out(client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "rollout": "server"}).json()["job_id"]
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert (reply.status_code, error_of(reply)["type"]) == (409, "ConflictError")


def test_a_lease_request_with_unknown_or_wrong_settings_is_refused(client, running_job):
    reply = client.post(f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "max_episode": 1})
    assert error_of(reply)["field"] == "max_episode"
    reply = client.post(f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "wait_seconds": 1e9})
    assert error_of(reply)["field"] == "wait_seconds"


def test_completions_come_through_line_by_line_as_they_are_finished(client, job_id, start_pool):
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


def test_a_batch_for_several_models_is_answered_by_their_pools(gateway, client, job_id, spec, start_pool):
    pools = [start_pool("pool-1", "nano", "t1"), start_pool("pool-2", "tiny", "t2")]
    tiny_job = client.post("/v1/jobs", json={**spec, "model": "tiny"}).json()["job_id"]
    asked = [request_for(["nano", job_id, tiny_job][number % 3], f"r{number}") for number in range(30)]
    response = client.post("/v1/sample", json={"requests": asked})
    answers = {answer["request_id"]: answer["from"] for answer in map(json.loads, response.text.splitlines())}
    assert answers == {f"r{number}": "t2" if number % 3 == 2 else "t1" for number in range(30)}
    assert [len(pool.asked[0][2]["requests"]) for pool in pools] == [20, 10]


def test_a_model_that_jobs_may_name_can_be_sampled_also_if_it_is_not_listed(owner, client, start_pool):
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
def test_others_than_the_owner_learn_nothing_of_models_that_are_not_listed(client, spec, model):
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


def test_the_owner_may_train_models_that_are_not_listed(owner, spec):
    assert owner.post("/v1/jobs", json={**spec, "model": "unlisted"}).status_code == 201


@pytest.mark.parametrize("policy", ["job-of-bob", "gpt-9", "/etc", ""])
def test_a_policy_that_is_not_the_tenants_own_cannot_be_sampled(gateway, client, spec, start_pool, policy):
    pool = start_pool()
    if policy == "job-of-bob":
        with gateway.client("bob") as bob:
            policy = bob.post("/v1/jobs", json=spec).json()["job_id"]
    response = client.post("/v1/sample", json={"requests": [request_for("nano"), request_for(policy, "r2")]})
    assert (response.status_code, error_of(response)["field"]) == (404, "policy")
    assert pool.asked == []


@pytest.mark.parametrize("session_id", ["s", ""])
def test_tenants_cannot_reach_each_others_cache_by_naming_the_same_session_or_none(
    gateway, client, start_pool, session_id
):
    pool = start_pool()
    with gateway.client("bob") as bob:
        for own in (client, bob):
            own.post("/v1/sample", json={"requests": [request_for("nano", session_id=session_id)]})
    first, second = (batch["requests"][0]["session_id"].split("/") for _, _, batch in pool.asked)
    assert first[0] != second[0]
    assert first[1] == second[1] == session_id


def test_a_model_without_a_pool_is_asked_for_and_the_client_told_to_come_again(gateway, client, job_id):
    response = client.post("/v1/sample", json={"requests": [request_for(job_id)]})
    assert (response.status_code, error_of(response)["type"]) == (503, "ServiceUnavailableError")
    assert "nano" in gateway.store.service().wanted_pools(now=time.time())


def test_why_a_models_pool_does_not_start_is_answered_while_it_is_news(gateway, client):
    service = gateway.store.service()
    error = ErrorView(type="StartError", message="torch sees no GPU", hint="set device=cpu", field="device")
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


def test_a_pool_that_died_or_came_back_with_another_token_is_unavailable(gateway, client, start_pool):
    pool = start_pool()
    pool.token = "another"
    response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
    assert response.status_code == 503
    service = gateway.store.service()
    service.register_pool("pool-1", "nano", "unix:///nowhere.sock", "t", now=time.time())
    response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
    assert (response.status_code, error_of(response)["type"]) == (503, "ServiceUnavailableError")


def test_connections_to_pools_that_nobody_calls_are_forgotten(start_pool, tmp_path):
    start_pool("pool-1")
    start_pool("pool-2")
    records = {
        name: PoolRecord(
            pool_id=name,
            model="nano",
            url=unix_url(tmp_path / f"{name}.sock"),
            token="pool-secret",
            seen_at=0.0,
        )
        for name in ("pool-1", "pool-2")
    }

    async def use_both() -> list[str]:
        now = 0.0
        proxy = PoolProxy(clock=lambda: now)
        body = json.dumps(LEASE).encode()
        await proxy.call(records["pool-1"], "/episodes/lease", body, {})
        assert proxy.urls == [records["pool-1"].url]
        now = 60.0
        await proxy.call(records["pool-2"], "/episodes/lease", body, {})
        urls = proxy.urls
        await proxy.close()
        return urls

    assert asyncio.run(use_both()) == [records["pool-2"].url]


def test_top_p_and_top_k_reach_the_pool(client, start_pool):
    pool = start_pool()
    asked = [request_for("nano", "r1", top_p=0.9, top_k=40), request_for("nano", "r2")]
    client.post("/v1/sample", json={"requests": asked})
    ((_, _, batch),) = pool.asked
    assert [(r["top_p"], r["top_k"]) for r in batch["requests"]] == [(0.9, 40), (1.0, 0)]


@pytest.mark.parametrize("cut", [{"top_p": 0}, {"top_p": 1.2}, {"top_k": -3}, {"min_p": 0.1}])
def test_sampling_that_there_is_not_is_refused_by_name(client, start_pool, cut):
    pool = start_pool()
    response = client.post("/v1/sample", json={"requests": [request_for("nano", **cut)]})
    (name,) = cut
    assert (response.status_code, error_of(response)["type"]) == (422, "InvalidRequestError")
    assert error_of(response)["field"].endswith(name)
    assert pool.asked == []


def test_two_requests_with_one_id_are_refused(client, start_pool):
    start_pool()
    response = client.post("/v1/sample", json={"requests": [request_for("nano"), request_for("nano")]})
    assert (response.status_code, error_of(response)["field"]) == (422, "requests.request_id")


def test_a_long_wait_is_made_of_short_ones_so_that_a_dead_client_takes_no_episodes(
    gateway, client, running_job, start_pool
):
    pool = start_pool("pool-1")
    body = json.dumps({**LEASE, "renew": [], "wait_seconds": 60}).encode()
    head = (
        f"POST /v1/jobs/{running_job}/episodes/lease HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {gateway.keys['ada']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with gateway.connect() as connection:
        connection.sendall(head.encode() + body)
        pool.wait_until_asked(2)
    with pool.changed:
        assert pool.changed.wait_for(lambda: pool.asked[-1][0] == "/episodes/vanished", timeout=20)
    *waits, (_, params, said) = pool.asked
    assert all(request["wait_seconds"] <= 1 for _, _, request in waits)
    assert (params["job_id"], said["worker_id"]) == (running_job, "w1")


def test_a_wait_ends_when_its_time_is_over(client, running_job, start_pool):
    pool = start_pool("pool-1")
    reply = client.post(
        f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "renew": [], "wait_seconds": 1.2}
    )
    assert reply.json()["episodes"] == []
    assert sum(request["wait_seconds"] for _, _, request in pool.asked) <= 1.2


def test_more_requests_for_tokens_than_a_tenant_may_have_in_flight_are_told_when_to_come_again(
    gateway, client, start_pool
):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", f"r{number}") for number in range(MOST_IN_FLIGHT)]}
    with client.stream("POST", "/v1/sample", json=batch) as answer:
        lines = answer.iter_lines()
        next(lines)
        # One is answered: one more may come, and no second one.
        more = {"requests": [request_for("nano", "x"), request_for("nano", "y")]}
        refused = client.post("/v1/sample", json=more)
        assert (refused.status_code, error_of(refused)["type"]) == (429, "TooManyRequestsError")
        assert refused.headers["retry-after"] == "1"
        assert client.post("/v1/sample", json={"requests": more["requests"][:1]}).status_code == 200
        with gateway.client("bob") as bob:
            pool.gate.set()
            assert bob.post("/v1/sample", json=more).status_code == 200
        assert len(list(lines)) == MOST_IN_FLIGHT - 1
    assert client.post("/v1/sample", json=more).status_code == 200


def test_an_answer_breaks_off_when_its_key_is_revoked(gateway, client, start_pool):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", "a"), request_for("nano", "b")]}
    with client.stream("POST", "/v1/sample", json=batch) as answer:
        lines = answer.iter_lines()
        next(lines)
        gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
        assert list(lines) == []
    assert client.post("/v1/sample", json=batch).status_code == 401


def test_a_pool_that_dies_ends_its_answer_early_and_logs_no_traceback(client, start_pool, caplog):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", "a"), request_for("nano", "b")]}
    with client.stream("POST", "/v1/sample", json=batch) as answer:
        lines = answer.iter_lines()
        next(lines)
        pool.dies.set()
        assert list(lines) == []
    assert not [record for record in caplog.records if record.exc_info]
    assert any("broke off" in record.message for record in caplog.records)


def test_what_a_client_that_hung_up_had_in_flight_does_not_count(client, start_pool):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", f"r{number}") for number in range(MOST_IN_FLIGHT)]}
    deadline = time.monotonic() + 20
    for _ in range(3):
        while True:
            with client.stream("POST", "/v1/sample", json=batch) as answer:
                if answer.status_code == 200:
                    next(answer.iter_lines())
                    break
            assert time.monotonic() < deadline


def test_the_leases_of_one_job_leave_room_at_the_pool_for_those_of_others(client, running_job, start_pool):
    pool = start_pool("pool-1")

    async def lease(asking, number):
        wanted = {"worker_id": f"w{number}", "max_episodes": 1, "wait_seconds": 0.2}
        return await asking.post(f"/v1/jobs/{running_job}/episodes/lease", json=wanted)

    async def lease_all():
        async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=30) as asking:
            return await asyncio.gather(*(lease(asking, number) for number in range(45)))

    assert {answer.status_code for answer in asyncio.run(lease_all())} == {200}
    assert 1 < pool.most_waiting <= 32


def test_a_worker_renews_its_leases_however_many_wait_for_episodes_before_it(client, running_job, start_pool):
    pool, path = start_pool("pool-1"), f"/v1/jobs/{running_job}/episodes/lease"
    most = 24

    async def lease_all():
        async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=30) as asking:
            pool.no_episodes.set()
            waiting = [
                asyncio.create_task(
                    asking.post(
                        path, json={"worker_id": f"w{number}", "max_episodes": 1, "wait_seconds": 0.2}
                    )
                )
                for number in range(most)
            ]
            await asyncio.to_thread(pool.wait_until_waiting, most)
            renewed = await asking.post(
                path, json={"worker_id": "busy", "max_episodes": 1, "wait_seconds": 20, "renew": ["lease-1"]}
            )
            pool.no_episodes.clear()
            return renewed, await asyncio.gather(*waiting)

    renewed, answers = asyncio.run(lease_all())
    assert renewed.json()["lost"] == ["lease-1"]
    assert {answer.status_code for answer in answers} == {200}
