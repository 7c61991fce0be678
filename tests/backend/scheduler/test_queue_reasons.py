"""What a tenant reads of a job in the queue; the workers of `world` only record what the scheduler does."""

from __future__ import annotations

import pytest

from backend.scheduler.process_runner import PoolEnded, Running
from backend.scheduler.unplaced import NO_PLACE, Unplaced
from backend.store.service_parts import lost_pools
from tinkergym.schema.events import JobState


def test_says_once_for_each_attempt_that_the_model_is_loading(world):
    job_id = world.submit()

    def reasons():
        for _ in range(3):
            world.scheduler.tick()
        return [event.body.reason for event in world.store.tenant("ada").events_after(job_id, 0)]

    assert reasons() == ["", "loading the model 'nano'"]
    (pool_id,) = world.workers.pools
    world.workers.news.append(PoolEnded(pool_id=pool_id))
    assert reasons()[2:] == ["loading the model 'nano', attempt 2 of 3"]
    world.clock.now += 2.0  # the pause after the first
    ready = world.pool()
    world.scheduler.tick()
    assert world.workers.started == [(ready, job_id)]


def test_says_once_why_a_job_waits(make_world):
    world = make_world(jobs_per_pool=2)
    abandoned = [world.submit("ada") for _ in range(2)]
    pool_id = world.pool()
    leases = [world.acquire(job_id, pool_id) for job_id in abandoned]
    waiting = world.submit("bob")

    def reasons():
        for _ in range(3):
            world.scheduler.tick()
        return [event.body.reason for event in world.store.tenant("bob").events_after(waiting, 0)]

    taken = "2 of 2 slots of 'nano' are taken (jobs_per_pool)"
    assert reasons() == ["", taken]
    world.service.set_state(leases[0], JobState.WAITING_FOR_CLIENT)
    one = f"{taken}, 1 of them for up to 60 s by jobs that wait for their client"
    assert reasons() == ["", taken, one]
    world.service.set_state(leases[1], JobState.WAITING_FOR_CLIENT)
    *_, both = reasons()
    assert both == f"{taken}, 2 of them for up to 60 s by jobs that wait for their client"
    assert not any(job_id in both for job_id in abandoned)  # they are another tenant's
    world.workers.found = [Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model="nano")]
    world.new_scheduler()
    world.service.set_state(leases[1], JobState.RUNNING)
    assert reasons() == ["", taken, one, both, one]
    assert world.service.job(waiting).state is JobState.QUEUED


def test_names_the_tenants_jobs_that_wait_for_clients(make_world):
    world = make_world(jobs_per_pool=2)
    adas, bobs = world.submit("ada"), world.submit("bob")
    pool_id = world.pool()
    for job_id in (adas, bobs):
        world.service.set_state(world.acquire(job_id, pool_id), JobState.WAITING_FOR_CLIENT)
    waiting = world.submit("ada")
    world.scheduler.tick()
    reason = world.service.job(waiting).reason
    assert (
        f"2 of them for up to 60 s by jobs that wait for their client: {adas}; attach to yours or cancel them"
        in reason
    )
    assert bobs not in reason


def test_says_that_a_tenants_job_is_beyond_its_places(make_world):
    world = make_world(jobs_per_tenant=1)
    first, second = world.submit("ada"), world.submit("ada")
    pool_id = world.pool()
    world.scheduler.tick()
    lease = world.acquire(first, pool_id)
    world.scheduler.tick()
    assert "jobs_per_tenant" in world.service.job(second).reason
    world.service.set_state(lease, JobState.COMPLETED)
    world.scheduler.tick()
    assert world.workers.started == [(pool_id, first), (pool_id, second)]


def test_changes_no_reason_by_a_place_given_to_another(make_world):
    world = make_world(jobs_per_pool=1)
    first, second, third = (world.submit() for _ in range(3))
    pool_id = world.pool()
    world.scheduler.tick()
    lease = world.acquire(first, pool_id)
    world.scheduler.tick()
    world.service.set_state(lease, JobState.COMPLETED)
    world.scheduler.tick()  # gives the place to the second
    world.acquire(second, pool_id)
    world.scheduler.tick()
    events = world.store.tenant("ada").events_after(third, 0)
    taken = "1 of 1 slots of 'nano' are taken (jobs_per_pool)"
    assert [event.body.reason for event in events] == ["", "loading the model 'nano'", taken]


def test_says_what_the_cluster_lacks_for_now(world):
    job_id = world.submit()
    world.scheduler.tick()
    (pool_id,) = world.workers.pools
    lacks = Unplaced(f"{NO_PLACE} yet, it needs 2 CPUs", may_change=True)
    world.workers.without_place = {pool_id: lacks}
    world.scheduler.tick()
    assert world.service.job(job_id).reason == lacks.reason
    world.workers.without_place = {}
    world.scheduler.tick()
    assert world.service.job(job_id).reason == "loading the model 'nano'"


def test_keeps_why_a_job_waits_for_a_full_cluster(world):
    job_id = world.submit()
    dead = world.pool()
    world.scheduler.tick()
    world.acquire(job_id, dead)
    world.workers.news.append(PoolEnded(pool_id=dead))
    world.scheduler.tick()
    (pool_id,) = set(world.workers.pools) - {dead}
    world.workers.without_place = {pool_id: Unplaced("the Ray cluster is full", may_change=True)}
    world.scheduler.tick()
    reason = "the Ray cluster is full: its worker died; resumes from the last checkpoint"
    assert world.service.job(job_id).reason == reason
    # The next scheduler knows the same.
    world.workers.found = [Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model="nano")]
    world.new_scheduler()
    world.workers.without_place = {}
    world.scheduler.tick()
    loading = "loading the model 'nano': its worker died; resumes from the last checkpoint"
    assert world.service.job(job_id).reason == loading


@pytest.mark.parametrize("address", ["", "10.0.0.5:6379"])
def test_ends_job_that_never_fits_unless_nodes_may_join(make_world, address):
    world = make_world(preload=[], ray={"address": address})
    job_id = world.submit(model="/models/large")
    world.scheduler.tick()
    (pool_id,) = world.workers.pools
    why = Unplaced(f"{NO_PLACE} ever on these nodes, it needs 4 GPUs", may_change=False, forever=True)
    world.workers.without_place = {pool_id: why}
    world.scheduler.tick()
    job = world.service.job(job_id)
    assert why.reason in job.reason
    if address:
        assert job.state is JobState.QUEUED
    else:
        assert (job.state, job.error.code) == (JobState.FAILED, "no_place")
        assert pool_id not in world.workers.pools
        assert not lost_pools(world.service.parts(world.clock.now))  # It never was there.


def test_names_readers_job_that_holds_gpus(world):
    running = world.submit(model="nano-instruct")
    pool_id = world.pool("nano-instruct")
    world.scheduler.tick()
    world.acquire(running, pool_id)
    own, foreign = world.submit(), world.submit(tenant="bo")
    world.scheduler.tick()
    waiting = next(pool for pool, model in world.workers.pools.items() if model == "nano")
    why = Unplaced(f"{NO_PLACE} yet, it needs 4 GPUs", may_change=True, holders=((pool_id, 4),))
    world.workers.without_place = {waiting: why}
    world.scheduler.tick()
    assert world.service.job(own).reason == f"{why.reason}; your {running} holds 4 GPUs"
    assert world.service.job(foreign).reason == why.reason


def test_lets_gateway_refuse_models_without_a_place(world):
    world.workers.no_place = {"nano": "needs 4 GPUs, no node has one"}
    world.scheduler.tick()
    assert world.service.refusals()["nano"].error.code == "no_place"
    world.workers.no_place = {}
    world.scheduler.tick()
    assert not world.service.refusals()
