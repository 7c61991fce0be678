"""Calls of policies are stored once, in order, for their owner alone."""

import asyncio

import httpx
import pytest

from tinkergym.schema.events import CheckpointView

pytestmark = pytest.mark.service

PUBLISH, SAVE = {"op": "publish"}, {"op": "save"}


@pytest.fixture
def calls(client):
    policy_id = client.post("/v1/jobs", json={"kind": "policy"}).json()["job_id"]
    return f"/v1/policies/{policy_id}/calls"


def send(client, calls, seq, call):
    return client.post(calls, json={"seq": seq, "call": call})


def test_stores_call_once_and_waits_for_place_of_its_policy(client, calls):
    for _ in range(2):  # an answer that was lost is asked for again
        answer = send(client, calls, 1, PUBLISH)
        assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert client.get(calls).json()["last_seq"] == 1
    shown = client.get(f"{calls}/1").json()
    assert (shown["done"], shown["result"], shown["state"]) == (False, None, "queued")


@pytest.mark.parametrize(("seq", "call"), [(1, SAVE), (3, PUBLISH)])
def test_rejects_another_call_of_same_number_and_after_a_gap(client, calls, seq, call):
    assert send(client, calls, 1, PUBLISH).status_code == 200
    answer = send(client, calls, seq, call)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "ConflictError")
    assert answer.json()["error"]["field"] == "seq"
    assert client.get(calls).json()["last_seq"] == 1


def test_takes_no_calls_for_jobs_with_loop_or_ended_policies(client, calls, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    assert send(client, f"/v1/policies/{job_id}/calls", 1, PUBLISH).status_code == 409
    policy_id = calls.split("/")[3]
    client.post(f"/v1/jobs/{policy_id}/cancel")
    assert send(client, calls, 1, PUBLISH).status_code == 409


def test_rejects_sequence_with_too_many_images(client, calls):
    images = [{"sha256": "0" * 64, "start": place, "end": place + 1} for place in range(65)]
    sequence = {"token_ids": [1] * 66, "loss_mask": [False] * 65 + [True], "images": images}
    answer = send(client, calls, 1, {"op": "forward_backward", "loss": "linear", "sequences": [sequence]})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "call.sequences.images")
    assert "limits.prompt_images" in answer.json()["error"]["hint"]
    assert client.get(calls).json()["last_seq"] == 0


def test_loads_no_policy_of_another_tenant(gateway, client, calls, spec):
    with gateway.client("bob") as bob:
        theirs = bob.post("/v1/jobs", json=spec).json()["job_id"]
    assert send(client, calls, 1, {"op": "load", "policy": f"{theirs}@1"}).status_code == 404
    assert client.get(calls).json()["last_seq"] == 0


@pytest.mark.parametrize(
    "call",
    [
        {"op": "forward_backward", "sequences": []},
        {"op": "forward_backward", "sequences": [{"token_ids": [1, 2]}], "clip_low": 0.1},
        {"op": "optim_step", "learning_rate": True},
        {"op": "optim_step"},
        {"op": "load", "policy": "job-1"},
        {"op": "train"},
    ],
)
def test_rejects_impossible_call_before_it_is_stored(client, calls, call):
    assert send(client, calls, 1, call).status_code == 422
    assert client.get(calls).json()["last_seq"] == 0


def test_resolves_reference_for_the_owner_of_its_policy(gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "pool-x", 100, 0.0)
    for step, version in ((2, 2), (4, 7)):
        view = CheckpointView(step=step, policy_version=version, path="/x", sha256="0" * 64, files={})
        service.add_checkpoint(lease, view)

    def found(reference, who=client):
        answer = who.get("/v1/policies", params={"reference": reference})
        return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"])

    newest = found(job_id)
    assert (newest["job_id"], newest["version"], newest["kept"]) == (job_id, None, [2, 7])
    assert found(f"{newest['policy_id']}@step:4")["version"] == 7
    status, error = found(f"{job_id}@best")
    assert (status, error["type"], error["field"]) == (404, "NotFoundError", "reference")
    assert found(f"{job_id}@x")[0] == 422
    with gateway.client("bob") as bob:
        assert found(newest["policy_id"], bob)[0] == found(job_id, bob)[0] == 404


def test_names_policy_by_its_own_id_too(gateway, client, calls):
    job_id = calls.split("/")[3]
    policy_id = client.get("/v1/policies", params={"reference": job_id}).json()["policy_id"]
    assert send(client, f"/v1/policies/{policy_id}/calls", 1, PUBLISH).status_code == 200
    assert client.get(calls).json() == {"policy_id": job_id, "last_seq": 1}
    with gateway.client("bob") as bob:
        assert bob.get(f"/v1/policies/{policy_id}/calls").status_code == 404


def test_leaves_room_at_pool_beside_waiting_calls_of_one_policy(gateway, client, calls, start_pool):
    assert send(client, calls, 1, PUBLISH).status_code == 200
    gateway.store.service().acquire(calls.split("/")[3], "pool-1", 30, now=0)
    pool = start_pool("pool-1")

    async def ask_all():
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, timeout=30, verify=False
        ) as asking:
            pool.no_episodes.set()
            wanted = [
                asyncio.create_task(asking.get(f"{calls}/1", params={"wait_seconds": 0.3})) for _ in range(45)
            ]
            await asyncio.to_thread(pool.wait_until_waiting, 2)
            pool.no_episodes.clear()
            return await asyncio.gather(*wanted)

    answers = asyncio.run(ask_all())
    assert {(answer.status_code, answer.json()["done"]) for answer in answers} == {(200, False)}
    assert 1 < pool.most_waiting <= 32
