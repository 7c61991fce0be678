"""Pools on a cluster's nodes; the workers of `make_world` only record what the scheduler does."""

from __future__ import annotations

import pytest

from backend.scheduler.unplaced import Unplaced

GB = 10**9


@pytest.fixture
def world(make_world):
    return make_world(ray={"address": "10.0.0.5:6379"}, preload=[], env_workers=0)


def pools(world, *models):
    """Start pools that somebody sampled once, and let time pass until nobody wants them any more."""
    for model in models:
        world.service.want_pool(model, world.clock.now)
        world.pool(model)
    for _ in range(70):
        pass_a_second(world)


def pass_a_second(world):
    world.let_pass(1.0)
    for pool_id in world.workers.pools:
        world.service.touch_pool(pool_id, world.clock.now)
    world.scheduler.tick()


@pytest.mark.parametrize("may_change", [True, False])
def test_ends_idle_pool_only_for_one_that_then_has_room(world, may_change):
    pools(world, "idle")
    world.submit(model="nano")
    pass_a_second(world)
    (waiting,) = (pool for pool, model in world.workers.pools.items() if model == "nano")
    world.workers.without_place = {waiting: Unplaced("the Ray cluster is full", may_change=may_change)}
    pass_a_second(world)
    assert ("idle" not in world.workers.pools.values()) is may_change


def test_budgets_memory_for_each_node(world):
    world.workers.nodes = {"small": 2 * GB, "large": 64 * GB}
    world.workers.node_by_model = {"here": "small", "there": "large"}
    world.workers.weights = {"here": 3, "there": 30}
    pools(world, "here", "there")
    assert list(world.workers.pools.values()) == ["there"]


def test_starts_second_pool_when_first_is_full(make_world):
    world = make_world(
        preload=["nano"], env_workers=0, jobs_per_pool=1, placement={"pools": 2}, pool_idle_seconds=60
    )
    first, second, third = (world.submit() for _ in range(3))
    pool = world.pool()
    world.scheduler.tick()
    world.acquire(first, pool)
    world.scheduler.tick()
    (other,) = set(world.workers.pools) - {pool}
    assert world.pool() == other
    world.scheduler.tick()
    assert world.workers.started[-1] == (other, second)
    world.acquire(second, other)
    world.scheduler.tick()
    assert len(world.workers.pools) == 2
    assert "2 of 2 slots" in world.service.job(third).reason
    for job_id in (first, second, third):
        world.store.tenant("ada").request_cancel(job_id)
    for pool_id in (pool, other):
        world.service.requeue_jobs_of(pool_id, "")  # Those that are to be cancelled end.
    for _ in range(70):
        pass_a_second(world)
    assert list(world.workers.pools) == [pool]
