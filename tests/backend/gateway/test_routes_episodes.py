import json

import pytest

pytestmark = pytest.mark.service


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


def result_of(job_id, index=0):
    # The gateway does not read the trajectory; the pool does.
    return {"episode_id": f"{job_id}:1:{index}", "lease_id": "l1", "trajectories": [{"anything": [1, 2]}]}


def test_sends_leases_and_results_to_the_pool_running_the_job(client, running_job, start_pool):
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


def test_rejects_results_for_another_job_before_a_pool_sees_them(client, spec, running_job, start_pool):
    pool = start_pool("pool-1")
    body = {"worker_id": "w1", "results": [result_of(running_job), result_of("job-of-bob")]}
    reply = client.post(f"/v1/jobs/{running_job}/episodes/submit", json=body)
    assert (reply.status_code, error_of(reply)["field"]) == (422, "results.episode_id")
    assert pool.asked == []


@pytest.mark.parametrize("body", [{}, {"results": 3}, {"results": [3]}, {"results": [{}]}])
def test_rejects_results_without_episodes(client, running_job, body):
    reply = client.post(f"/v1/jobs/{running_job}/episodes/submit", json=body)
    assert (reply.status_code, error_of(reply)["field"].partition(".")[0]) == (422, "results")


def test_lets_worker_keep_episodes_while_no_pool_runs_the_job(client, job_id):
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    nothing = {"episodes": [], "lost": [], "job_state": "queued", "held_seconds": 0.0}
    assert reply.json() == {**nothing, "waits_for": ""}
    reply = client.post(
        f"/v1/jobs/{job_id}/episodes/submit", json={"worker_id": "w1", "results": [result_of(job_id)]}
    )
    assert (reply.status_code, error_of(reply)["type"]) == (503, "ServiceUnavailableError")
    assert reply.headers["retry-after"] == "1"


def test_tells_worker_what_its_queued_job_waits_for(gateway, client, job_id):
    gateway.store.service().explain_queue([job_id], "loading the model 'nano'")
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert reply.json()["waits_for"] == "loading the model 'nano'"


def test_queues_a_parked_job_again_when_a_worker_asks(gateway, client, job_id):
    service = gateway.store.service()
    service.park(service.acquire(job_id, "pool-1", 30, now=0), "waits for its client")
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "waiting_for_client"
    # One that only says goodbye does not play.
    client.post(f"/v1/jobs/{job_id}/episodes/lease", json={**LEASE, "leaving": True})
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "waiting_for_client"
    client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


def test_tells_worker_to_stop_when_its_job_has_ended(client, job_id):
    client.post(f"/v1/jobs/{job_id}/cancel")
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    told = {"episodes": [], "lost": ["l1"], "job_state": "cancelled", "held_seconds": 0.0, "waits_for": ""}
    assert reply.json() == told
    body = {"worker_id": "w1", "results": [result_of(job_id), result_of(job_id, 1)]}
    reply = client.post(f"/v1/jobs/{job_id}/episodes/submit", json=body)
    assert reply.json() == {"verdicts": ["stale", "stale"]}


def test_does_not_hand_out_episodes_that_the_service_plays(client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "rollout": "server"}).json()["job_id"]
    reply = client.post(f"/v1/jobs/{job_id}/episodes/lease", json=LEASE)
    assert (reply.status_code, error_of(reply)["type"]) == (409, "ConflictError")


def test_rejects_lease_request_with_unknown_or_wrong_settings(client, running_job):
    reply = client.post(f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "max_episode": 1})
    assert error_of(reply)["field"] == "max_episode"
    reply = client.post(f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "wait_seconds": 1e9})
    assert error_of(reply)["field"] == "wait_seconds"


def test_splits_long_waits_so_dead_clients_take_no_episodes(gateway, client, running_job, start_pool):
    pool = start_pool("pool-1")
    body = json.dumps({**LEASE, "renew": [], "wait_seconds": 60}).encode()
    head = (
        f"POST /v1/jobs/{running_job}/episodes/lease HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {gateway.keys['ada']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with gateway.connect() as connection:
        connection.sendall(head.encode() + body)
        pool.wait_until_asked(2)
    with pool.changed:
        assert pool.changed.wait_for(lambda: pool.asked[-1][0] == "/episodes/vanished", timeout=120)
    *waits, (_, params, said) = pool.asked
    assert all(request["wait_seconds"] <= 1 for _, _, request in waits)
    assert (params["job_id"], said["worker_id"]) == (running_job, "w1")


def test_ends_a_wait_when_its_time_is_over(client, running_job, start_pool):
    pool = start_pool("pool-1")
    reply = client.post(
        f"/v1/jobs/{running_job}/episodes/lease", json={**LEASE, "renew": [], "wait_seconds": 1.2}
    )
    assert reply.json()["episodes"] == []
    assert sum(request["wait_seconds"] for _, _, request in pool.asked) <= 1.2
