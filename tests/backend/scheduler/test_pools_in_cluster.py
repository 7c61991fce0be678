"""Pools on a cluster's nodes. No process runs; places are planned, and Ray's part is a list."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from backend.planning.machines import Machine
from backend.scheduler.process_runner import PoolReady
from backend.scheduler.ray_placing import Placing
from backend.store.service_parts import NODES
from tests.backend.scheduler.conftest import ScriptedWorkers

GB = 10**9


@pytest.fixture
def world(make_world):
    return make_world(ray={"address": "10.0.0.5:6379"}, preload=[], env_workers=0)


def pools(world, *models):
    """Start pools that somebody sampled once, and that nobody wants any more."""
    for model in models:
        world.service.want_pool(model, world.clock.now)
        world.pool(model)
    rest(world)


def rest(world):
    """Let time pass until nobody wants to sample any more."""
    for _ in range(7):
        pass_seconds(world, 10.0)


def pass_seconds(world, seconds=1.0):
    world.let_pass(seconds)
    for pool_id in world.workers.pools:
        world.service.touch_pool(pool_id, world.clock.now)
    world.scheduler.tick()


@dataclass
class Nodes:
    """Those of a cluster, all usable."""

    machines: list[Machine]

    @property
    def usable(self):
        return {machine.node_id: machine for machine in self.machines}

    def look(self):
        pass

    def refusals(self):
        return ""


@dataclass
class Groups:
    """What Ray was asked for, and whether it gives that now."""

    reserved: dict[str, str] = field(default_factory=dict)
    gives: bool = True
    answers_after: float = 0.0

    def adopt(self, pool_ids):
        return {}

    def reserve(self, pool_id, placed, *, on_nodes):
        self.reserved[pool_id] = placed.parts[0].node_id

    def is_placed(self, pool_id, seconds):
        return self.gives and seconds >= self.answers_after

    def node_of(self, pool_id):
        return self.reserved.get(pool_id, "")

    def remove(self, pool_id):
        self.reserved.pop(pool_id, None)


class PlacedWorkers(ScriptedWorkers):
    """Pools are ready as soon as they have a place."""

    def __init__(self, world, machines):
        super().__init__()
        self.world, self.groups = world, Groups()
        self.placing = Placing(
            world.config, {}, nodes=Nodes(machines), groups=self.groups, monotonic=world.monotonic
        )
        for name in ("waiting", "ends_for_room", "impossible", "node_bytes", "node_of"):
            setattr(self, name, getattr(self.placing, name))

    def start_pool(self, pool_id, model, memory_bytes):
        super().start_pool(pool_id, model, memory_bytes)
        self.placing.want(pool_id, model, memory_bytes)

    def changes(self):
        for pool_id, _, _ in self.placing.placed():
            self.world.register(pool_id)
            self.news.append(PoolReady(pool_id=pool_id))
        return super().changes()

    def end_pool(self, pool_id):
        super().end_pool(pool_id)
        self.placing.forget(pool_id)

    def places(self):
        return {self.pools[pool_id]: node for pool_id, node in self.groups.reserved.items()}


@pytest.fixture
def nodes(make_world):
    """A service on two nodes; each has room for two pools, or a large one."""
    world = make_world(
        ray={"address": "10.0.0.5:6379"},
        preload=[],
        env_workers=0,
        placement={"cpus": 3},
        models={"large": {"path": "some/large", "placement": {"cpus": 7}}},
    )
    machines = [Machine(node_id=name, cpus=8, memory_bytes=64 * GB) for name in "ab"]
    world.workers = PlacedWorkers(world, machines)
    world.new_scheduler()
    return world


def four_idle(world):
    """Fill the nodes: one and two are on the first, three and four on the other."""
    for model in ("one", "two", "three", "four"):
        world.service.want_pool(model, world.clock.now)
        for _ in range(2):
            pass_seconds(world)
    rest(world)
    assert world.workers.places() == {"one": "a", "two": "a", "three": "b", "four": "b"}


def test_ends_one_idle_pool_for_one_that_waits(nodes):
    four_idle(nodes)
    nodes.workers.groups.gives = False  # The ended pool's process takes a while.
    job_id = nodes.submit(model="five")
    for _ in range(8):
        pass_seconds(nodes)
    assert nodes.workers.places() == {"two": "a", "three": "b", "four": "b", "five": "a"}
    assert nodes.service.job(job_id).reason == "loading the model 'five'"
    nodes.workers.groups.gives = True
    for _ in range(3):
        pass_seconds(nodes)
    assert job_id in dict(nodes.workers.started).values()


def test_starts_pool_though_every_answer_of_ray_is_late(nodes):
    nodes.workers.groups.answers_after = 1.0
    job_id = nodes.submit(model="one")
    for _ in range(12):
        pass_seconds(nodes)
    assert job_id in dict(nodes.workers.started).values()


def test_waits_for_all_late_places_two_seconds_together(nodes):
    placing, clock, groups = nodes.workers.placing, nodes.monotonic, nodes.workers.groups
    asked = []

    def is_placed(pool_id, seconds):
        clock.now += seconds
        asked.append(pool_id)
        return False

    groups.is_placed = is_placed
    for pool_id in ("one", "two", "three", "four"):
        placing.want(pool_id, pool_id, GB)
    list(placing.placed())
    clock.now += 9.0
    before = clock.now
    asked.clear()
    list(placing.placed())
    assert len(asked) == 4
    assert clock.now - before == pytest.approx(2.0)


def test_ends_idle_pools_of_one_node_for_large_model(nodes):
    four_idle(nodes)
    nodes.service.want_pool("one", nodes.clock.now)  # No longer idle.
    nodes.submit(model="large")
    for _ in range(8):
        pass_seconds(nodes)
    assert nodes.workers.places() == {"one": "a", "two": "a", "large": "b"}


def test_ends_no_idle_pool_in_vain(nodes):
    four_idle(nodes)
    for model in ("one", "three"):
        nodes.service.want_pool(model, nodes.clock.now)
    job_id = nodes.submit(model="large")
    for _ in range(8):
        pass_seconds(nodes)
    assert nodes.workers.places().keys() == {"one", "two", "three", "four"}
    assert "needs 7 CPUs" in nodes.service.job(job_id).reason


def test_keeps_a_node_for_a_model_that_waited_long(nodes):
    four_idle(nodes)

    def passes(seconds, *used):
        for _ in range(int(seconds / 10)):
            for model in used:
                nodes.service.want_pool(model, nodes.clock.now)
            pass_seconds(nodes, 10.0)

    passes(10, "one", "three")
    nodes.submit(model="large")
    passes(620, "one", "three")
    assert nodes.workers.places() == {"one": "a", "three": "b"}
    for model in ("five", "six"):
        nodes.submit(model=model)
    passes(20, "one", "three")
    assert nodes.workers.places() == {"one": "a", "three": "b", "five": "b"}
    passes(80, "three")  # The large one is placed as soon as its node is free.
    assert nodes.workers.places() == {"three": "b", "five": "b", "large": "a"}


def test_ends_no_idle_pool_for_unwanted_model(nodes):
    four_idle(nodes)
    for model in ("one", "three"):
        nodes.service.want_pool(model, nodes.clock.now)
    job_id = nodes.submit(model="large")
    pass_seconds(nodes)
    nodes.store.tenant("ada").request_cancel(job_id)
    rest(nodes)
    assert list(nodes.workers.pools.values()) == ["one", "two", "three", "four"]


def test_knows_impossible_models_though_others_hold_gpus(make_world):
    placements = {"large": {"cpus": 9, "gpus": 0}, "waits": {"gpus": 2}}
    models = {name: {"path": f"some/{name}", "placement": each} for name, each in placements.items()}
    world = make_world(ray={"address": "10.0.0.5:6379"}, models=models)
    shared = Machine(node_id="a", cpus=8, memory_bytes=64 * GB, gpus=(80 * GB,), gpus_of_others=1)
    placing = PlacedWorkers(world, [shared]).placing
    assert placing.impossible() == {}  # Other nodes may be about to join.
    world.monotonic.now += 31.0
    assert placing.impossible().keys() == {"large", "large|full"}


def lacks_nodes(world, seconds=1):
    for _ in range(seconds):
        pass_seconds(world)
    return NODES in world.service.parts(world.clock.now)


def test_records_that_no_node_has_place_for_what_is_wanted(nodes):
    machines = nodes.workers.placing.machines
    small, other = machines
    assert not lacks_nodes(nodes)
    machines.clear()
    assert not lacks_nodes(nodes, 30)
    assert lacks_nodes(nodes, 2)
    nodes.new_scheduler()
    assert lacks_nodes(nodes, 40)
    machines.append(Machine(node_id="c", cpus=2, memory_bytes=64 * GB))
    assert not lacks_nodes(nodes)
    job_id = nodes.submit(model="large")
    assert lacks_nodes(nodes, 33)  # No model of the settings could ever start, either.
    machines[:] = [small, other]
    nodes.store.tenant("ada").request_cancel(job_id)
    assert not lacks_nodes(nodes, 33)


def test_records_no_lack_for_one_job_while_others_serve(nodes):
    nodes.submit(model="one")
    assert not lacks_nodes(nodes, 3)
    nodes.workers.placing.machines[:] = [Machine(node_id=name, cpus=4, memory_bytes=64 * GB) for name in "ab"]
    nodes.submit(model="large")
    assert not lacks_nodes(nodes, 35)


def test_keeps_what_the_last_scheduler_recorded_until_it_knows(nodes):
    nodes.workers.placing.machines[:] = [Machine(node_id="c", cpus=2, memory_bytes=64 * GB)]
    assert lacks_nodes(nodes, 35)
    nodes.new_scheduler()
    assert all(lacks_nodes(nodes) for _ in range(29))


def test_budgets_memory_for_each_node(world):
    world.workers.nodes = {"small": 2 * GB, "large": 64 * GB}
    world.workers.node_by_model = {"here": "small", "there": "large"}
    world.workers.weights = {"here": 3, "there": 30}
    pools(world, "here", "there")
    assert list(world.workers.pools.values()) == ["there"]


def test_ends_idle_pool_on_the_node_that_is_short(world):
    world.workers.nodes = {"a": 4 * GB, "b": 4 * GB}
    world.workers.node_by_model = {"apart": "a", "there": "b", "here": "a"}
    world.workers.weights = {"apart": 3, "there": 3}
    world.workers.elsewhere = {"apart": {"b": 2 * GB}}  # its engine hosts
    pools(world, "there", "here", "apart")
    assert list(world.workers.pools.values()) == ["here", "apart"]


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
    rest(world)
    assert list(world.workers.pools) == [pool]
