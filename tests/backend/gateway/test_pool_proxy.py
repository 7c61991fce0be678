import asyncio
import json
import time

import httpx
import pytest

from backend.gateway.pool_proxy import PoolProxy
from backend.store.store import PoolRecord
from backend.worker_url import unix_url

pytestmark = pytest.mark.service


LEASE = {"worker_id": "w1", "max_episodes": 4, "wait_seconds": 0, "renew": ["l1"]}


def error_of(response):
    return response.json()["error"]


def request_for(policy, request_id="r1", **more):
    return {"request_id": request_id, "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4, **more}


def test_reports_pool_that_died_or_changed_token_as_unavailable(gateway, client, start_pool):
    pool = start_pool()
    pool.token = "another"
    response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
    assert response.status_code == 503
    service = gateway.store.service()
    service.register_pool("pool-1", "nano", "unix:///nowhere.sock", "t", now=time.time())
    response = client.post("/v1/sample", json={"requests": [request_for("nano")]})
    assert (response.status_code, error_of(response)["type"]) == (503, "ServiceUnavailableError")


def test_forgets_connections_to_uncalled_pools(start_pool, tmp_path):
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


def test_ends_answer_early_without_traceback_when_its_pool_dies(client, start_pool, caplog):
    pool = start_pool("pool-1")
    pool.gate.clear()
    batch = {"requests": [request_for("nano", "a"), request_for("nano", "b")]}
    with client.stream("POST", "/v1/sample", json=batch) as answer:
        lines = answer.iter_lines()
        next(lines)
        pool.dies.set()
        assert list(lines) == []
    said = [record for record in caplog.records if "pool-1" in record.getMessage()]
    assert [record.exc_info for record in said if "broke off" in record.getMessage()] == [None]
    own = [record for record in caplog.records if record.name.startswith(("backend.gateway", "uvicorn"))]
    assert not [record for record in own if record.exc_info]


@pytest.fixture
def job_id(client, spec):
    return client.post("/v1/jobs", json=spec).json()["job_id"]


@pytest.fixture
def running_job(gateway, job_id):
    gateway.store.service().acquire(job_id, "pool-1", 30, now=0)
    return job_id


def test_leaves_room_at_pool_beside_waiting_leases_of_one_job(client, running_job, start_pool):
    pool = start_pool("pool-1")

    async def lease(asking, number):
        wanted = {"worker_id": f"w{number}", "max_episodes": 1, "wait_seconds": 0.2}
        return await asking.post(f"/v1/jobs/{running_job}/episodes/lease", json=wanted)

    async def lease_all():
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, timeout=30, verify=False
        ) as asking:
            pool.no_episodes.set()
            waiting = [asyncio.create_task(lease(asking, number)) for number in range(45)]
            await asyncio.to_thread(pool.wait_until_waiting, 2)
            pool.no_episodes.clear()
            return await asyncio.gather(*waiting)

    assert {answer.status_code for answer in asyncio.run(lease_all())} == {200}
    assert 1 < pool.most_waiting <= 32


def test_renews_a_workers_leases_however_many_wait_for_episodes(client, running_job, start_pool):
    pool, path = start_pool("pool-1"), f"/v1/jobs/{running_job}/episodes/lease"
    most = 24

    async def lease_all():
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, timeout=30, verify=False
        ) as asking:
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
