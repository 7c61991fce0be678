"""Environment workers that are children of the host, when its scheduler loses its claim and gets it back."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from backend.episodes.env_worker_end import WorkerRemains
from backend.scheduler.process_runner import Running
from backend.scheduler.ray_cluster import RayWorkers
from backend.scheduler.scheduler import Scheduler
from backend.worker_url import unix_url

POOL = "pool-1"


class Actor:
    """Answers nothing, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def __getattr__(self, name: str):
        return Method(self, name)


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *arguments: object) -> Method:
        self.actor.told.append((self.name, *arguments))
        return self

    def future(self) -> Future:
        return Future()


class Child:
    def __init__(self) -> None:
        self.is_over: Future[WorkerRemains] = Future()

    def run(self, address) -> Future[WorkerRemains]:
        return self.is_over

    def watched(self) -> Future[WorkerRemains]:
        return self.is_over

    def memory(self) -> Future[tuple[str, int]]:
        known: Future[tuple[str, int]] = Future()
        known.set_result(("", 1000))
        return known

    def end(self) -> None:
        if not self.is_over.done():
            self.is_over.set_result(WorkerRemains())


class NoPlaces:
    """Has no place for a further pool."""

    looks = 0

    def want(self, pool_id, model, memory_bytes) -> None: ...

    def adopt(self, pool_ids) -> None: ...

    def forget(self, pool_id) -> None: ...

    def placed(self):
        self.looks += 1
        return []

    def node_of(self, pool_id):
        return ""

    def waiting(self):
        return {}

    def ends_for_room(self, idle):
        return []

    def rank_bytes(self, pool_id):
        return {}

    impossible = node_bytes = waiting

    def place(self, pool_id):
        return type("Place", (), {"engines": ()})


class Machine:
    """A host's schedulers, one after the other, as it makes them when it has the claim."""

    def __init__(self, world) -> None:
        self.world, self.children, self.pool = world, {}, Actor()
        pool = Running(kind="pool", pool_id=POOL, worker_id=POOL, model="nano")
        self.actors = {str(pool): self.pool}
        self.started: list[Child] = []
        self.placing = NoPlaces()
        url = unix_url(world.socket(POOL))
        world.service.register_pool(POOL, "nano", url, "token", world.clock.now)

    def start_child(self, config, worker_id) -> Child:
        self.started.append(Child())
        return self.started[-1]

    def begin(self) -> Scheduler:
        config, world = self.world.config, self.world
        workers = RayWorkers(
            config,
            children=self.children,
            actors=lambda: self.actors,
            placing=self.placing,
            start_child=self.start_child,
        )
        scheduler = Scheduler(
            world.service,
            workers,
            config,
            clock=world.clock,
            monotonic=world.monotonic,
            memory=lambda: 10**10,
        )
        scheduler.tick()
        return scheduler

    def ends_told(self) -> list[str]:
        return [end for name, *rest in self.pool.told if name == "env_worker_ended" for end in [rest[1]]]


@pytest.fixture
def machine(make_world):
    machine = Machine(make_world(preload=["nano"]))
    machine.begin()
    assert len(machine.started) == 1
    return machine


def test_hands_children_to_the_next_scheduler(machine):
    scheduler = machine.begin()
    (child,) = machine.started
    assert not child.is_over.done()
    child.end()
    scheduler.tick()
    assert machine.ends_told() == ["died"]
    assert (len(machine.started), len(machine.children)) == (2, 1)


def test_hears_of_a_death_between_two_schedulers(machine):
    machine.started[0].end()
    machine.begin()
    assert machine.ends_told() == ["died"]
    assert len(machine.started) == 2


def test_learns_sizes_without_a_further_look(machine):
    scheduler = machine.begin()
    scheduler.tick()
    assert not scheduler.due()


def test_looks_for_places_while_every_tick_follows_a_commit(machine):
    scheduler = machine.begin()
    for _ in range(3):
        looks = machine.placing.looks
        machine.world.submit()
        assert scheduler.due()
        scheduler.tick()
        assert machine.placing.looks > looks


def test_ends_children_of_a_pool_that_died_meanwhile(machine):
    machine.actors = {}
    machine.begin()
    assert machine.started[0].is_over.done()
    assert machine.children == {}
