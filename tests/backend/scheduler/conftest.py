from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backend.config import ServiceConfig
from backend.scheduler.process_runner import Change, EngineHostEnded, PoolReady, Running
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.unplaced import Unplaced
from backend.store.store import Store
from backend.worker_url import unix_url
from tests.backend.scheduler.hosts import Host
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedWorkers:
    """Starts nothing; remembers what it was asked for, and reports what the test says."""

    pools: dict[str, str] = field(default_factory=dict)
    """The model of each pool."""
    env_workers: dict[str, str] = field(default_factory=dict)
    started: list[tuple[str, str]] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    news: list[Change] = field(default_factory=list)
    found: list[Running] = field(default_factory=list)
    weights: dict[str, int] = field(default_factory=dict)
    """What a model's pool takes, in GB; 1 for those that are missing."""
    elsewhere: dict[str, dict[str, int]] = field(default_factory=dict)
    """What further processes of a model's pool take on other nodes, in bytes."""
    without_place: dict[str, Unplaced] = field(default_factory=dict)
    no_place: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    """The memory of a cluster's nodes, in bytes."""
    node_by_model: dict[str, str] = field(default_factory=dict)
    engines: int = 1
    engine_hosts: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The pool and the number of each."""

    def running(self) -> list[Running]:
        return self.found

    def start_pool(self, pool_id: str, model: str, memory_bytes: int) -> None:
        self.pools[pool_id] = model

    def waiting(self) -> dict[str, Unplaced]:
        return self.without_place

    def ends_for_room(self, idle: Sequence[str]) -> list[str]:
        return []

    def impossible(self) -> dict[str, str]:
        return self.no_place

    def node_bytes(self) -> dict[str, int]:
        return self.nodes

    def node_of(self, pool_id: str) -> str:
        return self.node_by_model.get(self.pools[pool_id], "")

    def start_env_worker(self, pool_id: str, worker_id: str) -> None:
        self.env_workers[worker_id] = pool_id

    def engines_of(self, pool_id: str, model: str) -> int:
        return self.engines

    def start_engine_host(self, pool_id: str, engine_id: str, model: str, number: int) -> None:
        self.engine_hosts[engine_id] = (pool_id, number)

    def end_engine_host(self, pool_id: str, engine_id: str) -> None:
        del self.engine_hosts[engine_id]
        self.news.append(EngineHostEnded(pool_id=pool_id, engine_id=engine_id))

    def has_changes(self) -> bool:
        return bool(self.news)

    def changes(self) -> list[Change]:
        news, self.news = self.news, []
        return news

    def memory(self) -> dict[str, dict[str, int]]:
        return {
            pool: {self.node_of(pool): self.weights.get(model, 1) * 10**9} | self.elsewhere.get(model, {})
            for pool, model in self.pools.items()
        }

    def start_job(self, pool_id: str, job_id: str) -> None:
        self.started.append((pool_id, job_id))

    def env_worker_ended(self, pool_id: str, worker_id: str, end: str, remains: object) -> None:
        self.told.append((pool_id, worker_id))

    def end_env_worker(self, pool_id: str, worker_id: str) -> None:
        del self.env_workers[worker_id]

    def end_pool(self, pool_id: str) -> None:
        self.pools.pop(pool_id, None)
        self.engine_hosts = {one: its for one, its in self.engine_hosts.items() if its[0] != pool_id}


class World:
    def __init__(self, tmp_path, **settings: object) -> None:
        self.config = ServiceConfig(data_dir=tmp_path, **({"env_workers": 1} | settings))
        self.clock, self.monotonic = Clock(), Clock(0.0)
        self.store = Store.open(self.config.store_url, clock=self.clock)
        self.service = self.store.service()
        self.workers = ScriptedWorkers()
        self.scheduler = self.new_scheduler()

    def new_scheduler(self) -> Scheduler:
        self.scheduler = Scheduler(
            self.service,
            self.workers,
            self.config,
            clock=self.clock,
            monotonic=self.monotonic,
            memory=lambda: 10 * 10**9,
        )
        return self.scheduler

    def submit(self, tenant: str = "ada", model: str = "nano") -> str:
        self.store.keys.ensure_tenant(tenant)
        spec = RLSpec(environment=EnvironmentRef(id="bandit/Bandit-v0"), model=model, steps=1)
        return self.store.tenant(tenant).create_job(spec, {}).job_id

    def pass_time(self, seconds: float) -> None:
        """Let the scheduler look every second, as long as that."""
        for _ in range(round(seconds)):
            self.let_pass(1.0)
            self.scheduler.tick()

    def let_pass(self, seconds: float) -> None:
        """Let both clocks go on, as they do unless one is set."""
        self.clock.now += seconds
        self.monotonic.now += seconds

    def pool(self, model: str = "nano") -> str:
        """Let the model's pool come up, as its process would; returns its id."""
        self.scheduler.tick()
        pool_id = next(pool for pool, its in reversed(self.workers.pools.items()) if its == model)
        self.register(pool_id)
        self.workers.news.append(PoolReady(pool_id=pool_id))
        return pool_id

    def register(self, pool_id: str) -> None:
        model, url = self.workers.pools[pool_id], unix_url(self.socket(pool_id))
        self.service.register_pool(pool_id, model, url, "token", self.clock.now)

    def socket(self, pool_id: str) -> Path:
        return self.config.run_dir / f"{pool_id}.sock"

    def acquire(self, job_id: str, pool_id: str):
        return self.service.acquire(job_id, pool_id, self.config.lease_seconds, self.clock.now)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.store.close()


@pytest.fixture
def make_world(tmp_path):
    worlds = []

    def make(**settings: object) -> World:
        worlds.append(World(tmp_path, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.store.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("service"), environment_variables=["PACK_KEY"])
    yield host
    assert host.stop() == 0
    host.store.close()
    shutil.rmtree(host.config.run_dir)  # the supervisor's work
