"""Which engine hosts the scheduler starts, replaces and ends."""

from __future__ import annotations

import pytest

from backend.scheduler.process_runner import EngineHostEnded, PoolEnded, Running
from backend.store.service_parts import engines_part, late_engines
from tinkergym.errors import UnknownModelError


@pytest.fixture
def pool_id(world):
    world.workers.engines = 3
    pool_id = world.pool()
    world.scheduler.tick()
    return pool_id


def numbers(world):
    return sorted(number for _, number in world.workers.engine_hosts.values())


def register(world, engine_id, pool_id):
    place = {"pool_id": pool_id, "model": "nano", "node": "10.0.0.7", "url": "http://10.0.0.7:1"}
    world.service.register_engine_host(engine_id, now=world.clock.now, **place)


def test_starts_one_host_less_than_engines_in_a_ready_pool(world):
    world.workers.engines = 3
    pool_id = world.pool()
    assert world.workers.engine_hosts == {}
    world.scheduler.tick()
    assert sorted(world.workers.engine_hosts.values()) == [(pool_id, 1), (pool_id, 2)]
    world.pass_time(3.0)
    assert numbers(world) == [1, 2]


def test_starts_none_for_a_single_engine(world):
    world.pool()
    world.scheduler.tick()
    assert world.workers.engine_hosts == {}


def test_replaces_a_host_that_died_with_growing_pauses(world, pool_id):
    def dies():
        dead = next(one for one, (_, number) in world.workers.engine_hosts.items() if number == 1)
        del world.workers.engine_hosts[dead]
        error = UnknownModelError("no such folder")
        world.workers.news.append(EngineHostEnded(pool_id=pool_id, engine_id=dead, error=error))
        world.scheduler.tick()

    waited = []
    for _ in range(3):
        dies()
        seconds = 0
        while numbers(world) != [1, 2]:
            world.service.touch_pool(pool_id, world.clock.now)
            world.pass_time(1.0)
            seconds += 1
        waited.append(seconds)
    assert waited == [1, 2, 4]


def test_ends_silent_hosts_and_starts_others(world, pool_id):
    silent, _ = world.workers.engine_hosts
    register(world, silent, pool_id)
    for _ in range(4):
        world.let_pass(world.config.lease_seconds / 3)
        world.service.touch_pool(pool_id, world.clock.now)
        world.scheduler.tick()
    world.pass_time(3.0)
    assert silent not in world.workers.engine_hosts
    assert numbers(world) == [1, 2]
    assert world.service.engine_hosts() == []


def test_reports_a_host_that_never_registers_and_replaces_it(world, pool_id):
    def let_pass(seconds):
        # A jump would be taken for a suspended machine.
        while seconds > 0:
            world.let_pass(world.config.lease_seconds / 3)
            seconds -= world.config.lease_seconds / 3
            world.service.touch_pool(pool_id, world.clock.now)
            for engine_id in registered:
                world.service.touch_engine_host(engine_id, world.clock.now, 1)
            world.scheduler.tick()

    def missing():
        return late_engines(world.service.parts(world.clock.now))

    late, other = world.workers.engine_hosts
    register(world, other, pool_id)
    registered = [other]
    let_pass(250)
    assert missing() == set()
    let_pass(100)
    assert missing() == {engines_part("nano")}
    assert late in world.workers.engine_hosts
    let_pass(3600)
    assert late not in world.workers.engine_hosts
    (new,) = world.workers.engine_hosts.keys() - {other}
    register(world, new, pool_id)
    registered.append(new)
    let_pass(10)
    assert missing() == set()


def test_forgets_the_hosts_of_a_pool_that_ended(world, pool_id):
    for engine_id in world.workers.engine_hosts:
        register(world, engine_id, pool_id)
    world.workers.news.append(PoolEnded(pool_id=pool_id))
    world.scheduler.tick()
    assert world.workers.engine_hosts == {}
    assert world.service.engine_hosts() == []


def test_takes_over_hosts_of_the_last_scheduler(world, pool_id):
    first, second = world.workers.engine_hosts
    for engine_id in (first, second):
        register(world, engine_id, pool_id)
    world.workers.found = [
        Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model="nano"),
        Running(kind="engine_host", pool_id=pool_id, worker_id=second, model="", number=2),
    ]
    del world.workers.engine_hosts[first]
    world.new_scheduler()
    assert [one.engine_id for one in world.service.engine_hosts()] == [second]
    world.scheduler.tick()
    assert second in world.workers.engine_hosts
    assert numbers(world) == [1, 2]
