import asyncio

import httpx
import pytest

pytestmark = pytest.mark.service


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
        async with httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=30) as asking:
            return await asyncio.gather(*(lease(asking, number) for number in range(45)))

    assert {answer.status_code for answer in asyncio.run(lease_all())} == {200}
    assert 1 < pool.most_waiting <= 32


def test_renews_a_workers_leases_however_many_wait_for_episodes(client, running_job, start_pool):
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
