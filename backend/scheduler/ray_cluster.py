"""Runs our processes as actors of Ray, which `ray_start` started or joined.

Ray holds no state that matters. Pools and engine hosts, on a cluster also environment workers, are detached,
named actors, so that a new scheduler finds those of the last one; environment workers of our own machine are
`Children`, which it gets from the last one. Their work is recorded in the store. A pool's id is in the names,
and never used again. No process on a cluster is reached by its number: it may be on another machine.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import ray

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerEnd, WorkerRemains
from backend.errors import RankLostError
from backend.planning.machines import Placed
from backend.scheduler import early_worker, ray_groups
from backend.scheduler.actor_processes import EngineHostProcess, PoolProcess
from backend.scheduler.env_worker_handles import EnvWorkerHandle, WorkerHere
from backend.scheduler.process_runner import (
    Change,
    EngineHostEnded,
    EnvWorkerEnded,
    EnvWorkersSeen,
    OnNode,
    PoolEnded,
    PoolReady,
    ProcessMemory,
    Running,
)
from backend.scheduler.ray_env_workers import Children, RayEnvWorkers
from backend.scheduler.ray_groups import POOL_BUNDLE
from backend.scheduler.ray_placing import Placing
from backend.scheduler.ray_start import child_environment
from backend.scheduler.unplaced import Unplaced
from tinkergym.errors import TinkerGymError

_ASK_SECONDS = 0.5
"""How often pools with jobs are asked about their environment workers."""
_ASK_IDLE_SECONDS = 5.0
"""How often the others are."""


def _actors() -> dict[str, Any]:
    """Return our running actors by name."""
    found = {}
    for name in cast(list[str], ray.util.list_named_actors(all_namespaces=False)):
        with contextlib.suppress(ValueError):  # It died a moment ago.
            found[name] = ray.get_actor(name)
    return found


def stop_everything(*, seconds: float) -> None:
    """Let the pools return their jobs to the queue, within `seconds`, and leave nothing behind in Ray."""
    actors = _actors()
    processes = [(Running.find(name), actor) for name, actor in actors.items()]
    stops = [actor.stop.remote() for one, actor in processes if one and one.kind != "env_worker"]
    with contextlib.suppress(Exception):
        ray.wait(stops, num_returns=len(stops), timeout=seconds)
    for actor in actors.values():
        _kill(actor)
    ray_groups.remove_all()
    ray.shutdown()


class RayWorkers:
    """Pools and environment workers as Ray actors; implements `process_runner.ProcessRunner`."""

    def __init__(
        self,
        config: ServiceConfig,
        wake: Callable[[], None] = lambda: None,
        children: Children | None = None,
        *,
        actors: Callable[[], dict[str, Any]] = _actors,
        placing: Placing | None = None,
        start_child: Callable[[ServiceConfig, str], EnvWorkerHandle] = WorkerHere,
    ) -> None:
        """Start nothing yet.

        Args:
            config: The service's settings.
            wake: Called, from any thread, when `changes` has something to return.
            children: Those of the last scheduler of this process, which are kept here for the next one.
            actors: Returns the running actors by name.
            placing: Finds places for pools; the default asks Ray.
            start_child: Starts an environment worker as a child of this process.
        """
        self._wake, self._actors = wake, actors
        self._config_json = config.model_dump_json()
        self._early_worker = config.early_worker_socket
        # Our own Ray's processes inherit them.
        variables = child_environment(everywhere=True) if config.ray.address else {}
        self._runtime_env: dict[str, Any] = {"env_vars": variables} if variables else {}
        self._placing = placing or Placing(config, variables)
        self._env_workers = RayEnvWorkers(
            config, self._placing, self._runtime_env, {} if children is None else children, start_child
        )
        # Of those with a place; a pool that waits for one is in `_placing` only.
        self._pools: dict[str, Any] = {}
        self._addresses: dict[str, Any] = {}
        """A reference to each pool's URL and token, which resolves when it listens."""
        # By id: the pool that a host serves, and its actor.
        self._engine_hosts: dict[str, tuple[str, Any]] = {}
        self._memory = ProcessMemory()
        """Of pools, environment workers and engine hosts, by their ids."""
        self._in_cluster = bool(config.ray.address)
        self._ask_at: dict[str, float] = {}
        """When to ask a pool about its environment workers, on the monotonic clock; missing: now."""
        self._watched: dict[Future[Any], tuple[str, str]] = {}
        """By promise (kind, id): it resolves when the event happens or the process dies."""
        self._resolved: deque[Future[Any]] = deque()

    def running(self) -> list[Running]:
        """Return what an earlier scheduler left running, and watch it from now on."""
        found: list[Running] = []
        for name, actor in self._actors().items():
            process = Running.find(name)
            if process is None:
                continue
            pool_id, worker_id = process.pool_id, process.worker_id
            if process.kind == "env_worker":
                self._env_workers.adopt(pool_id, worker_id, actor)
                continue
            if process.kind == "pool":
                self._pools[pool_id] = actor
            else:
                self._engine_hosts[worker_id] = (pool_id, actor)
            self._watch(actor.wait.remote().future(), process.kind, worker_id)
            found.append(process)
        for worker_id, (pool_id, worker) in self._env_workers.started().items():
            self._watch(worker.watched(), "env_worker", worker_id)
            found.append(Running(kind="env_worker", pool_id=pool_id, worker_id=worker_id))
        self._placing.adopt(self._pools)
        # Those whose pool died while there was no scheduler.
        for pool_id in set(self._helpers().values()):
            if pool_id not in self._pools:
                self._end_helpers(pool_id)
        return [process for process in found if process.pool_id in self._pools]

    def start_pool(self, pool_id: str, model: str, memory_bytes: int) -> None:
        """Start a pool that is expected to take this much memory; `PoolReady` or `PoolEnded` follows."""
        self._placing.want(pool_id, model, memory_bytes)
        self._start_pools()

    def waiting(self) -> dict[str, Unplaced]:
        """Return why pools that were asked for have no place on a machine yet, by pool."""
        return self._placing.waiting()

    def ends_for_room(self, idle: Sequence[str]) -> list[str]:
        """Return which of these pools to end so that one that waits has a place; see `ProcessRunner`."""
        return self._placing.ends_for_room(idle)

    def impossible(self) -> dict[str, str]:
        """Return why models of the settings have no place on the present nodes, whatever else runs there."""
        return self._placing.impossible()

    def node_bytes(self) -> dict[str, int]:
        """Return the memory that a cluster's nodes have for pools, by node; empty on our own machine."""
        return self._placing.node_bytes()

    def node_of(self, pool_id: str) -> str:
        """Return the node on which a cluster placed a pool; empty on our own machine."""
        return self._placing.node_of(pool_id)

    def _start_pools(self) -> None:
        for pool_id, model, placed in self._placing.placed():
            self._start_placed(pool_id, model, placed)

    def _start_placed(self, pool_id: str, model: str, placed: Placed) -> None:
        python = early_worker.python_in(self._early_worker)
        place, (own, *_) = self._placing.place_of(placed), placed.parts
        first_rank = place.ranks[0].cpus if len(place.ranks) > 1 else 0.0
        actor = (
            # Not restarted by Ray: a new process needs a new id, as leases and names of the old one may still
            # be in use.
            ray.remote(max_restarts=0, max_concurrency=16)(PoolProcess)
            .options(
                name=str(Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model=model)),
                lifetime="detached",
                # Its learner's first rank runs in the same bundle.
                num_cpus=own.cpus - first_rank,
                memory=own.memory_bytes,
                scheduling_strategy=self._placing.bundle(pool_id, POOL_BUNDLE),
                runtime_env=self._runtime_env | ({"py_executable": python} if python else {}) or None,
            )
            .remote(self._config_json, pool_id, model, place.to_json())
        )
        self._pools[pool_id] = actor
        self._watch(actor.start.remote().future(), "start", pool_id)
        # They were asked for before their pool had a place.
        for worker_id in self._env_workers.of(pool_id, waiting=True):
            self.start_env_worker(pool_id, worker_id)

    def start_env_worker(self, pool_id: str, worker_id: str) -> None:
        """Start an environment worker that plays for a pool, which need not be ready yet."""
        self._env_workers.want(pool_id, worker_id)
        if pool_id not in self._pools:
            return  # It starts when its pool has a place.
        promise = self._env_workers.start(pool_id, worker_id, self._address_of(pool_id))
        self._watch(promise, "env_worker", worker_id)

    def engines_of(self, pool_id: str, model: str) -> int:
        """Return how many engines a pool has in all; the first is in its own process."""
        return len(self._placing.place(pool_id).engines) or 1

    def start_engine_host(self, pool_id: str, engine_id: str, model: str, number: int) -> None:
        """Start an engine host of a ready pool; `EngineHostEnded` follows when it ends."""
        place = self._placing.place(pool_id).of_engine(number)
        (own,) = place.engines
        process = Running(kind="engine_host", pool_id=pool_id, worker_id=engine_id, number=number)
        actor = (
            ray.remote(max_restarts=0, max_concurrency=8)(EngineHostProcess)
            .options(
                name=str(process),
                lifetime="detached",
                num_cpus=own.cpus,
                memory=own.memory_bytes,
                scheduling_strategy=self._placing.bundle(pool_id, own.bundle),
                runtime_env=self._runtime_env or None,
            )
            .remote(self._config_json, engine_id, pool_id, model, place.to_json())
        )
        self._engine_hosts[engine_id] = (pool_id, actor)
        self._watch(actor.run.remote(self._address_of(pool_id)).future(), "engine_host", engine_id)

    def end_engine_host(self, pool_id: str, engine_id: str) -> None:
        """Kill an engine host; `EngineHostEnded` follows."""
        _, actor = self._engine_hosts.get(engine_id, ("", None))
        _kill(actor)

    def _address_of(self, pool_id: str) -> Any:
        if pool_id not in self._addresses:
            self._addresses[pool_id] = self._pools[pool_id].address.remote()
        return self._addresses[pool_id]

    def has_changes(self) -> bool:
        """Whether `changes` would return any, other than reports of pools without jobs, which can wait."""
        self._look()
        return any(map(self._is_news, list(self._resolved)))

    def _look(self) -> None:
        """Notice what is not reported. Before each tick and in it: a busy store's ticks come unasked."""
        self._start_pools()  # Nodes come and go, and Ray gives places, without any commit.
        self._ask_about_env_workers()

    def _is_news(self, promise: Future[Any]) -> bool:
        about, _ = self._watched[promise]
        report, error = _outcome(promise)
        return about != "env_workers" or error is not None or report is None or report.busy

    def changes(self) -> list[Change]:
        """Return what happened since the last call."""
        self._look()
        found: list[Change] = []
        while self._resolved:
            promise = self._resolved.popleft()
            about, who = self._watched.pop(promise)
            value, error = _outcome(promise)
            if about == "env_workers":
                if error is None and value is not None:
                    if value.busy and who in self._pools:
                        soon = time.monotonic() + _ASK_SECONDS
                        # Unknown, if the pool was given a job meanwhile.
                        self._ask_at[who] = min(self._ask_at.get(who, soon), soon)
                    found.append(EnvWorkersSeen(pool_id=who, owners=value.owners, wanted=value.wanted))
                    self._env_workers.kill_silent(value.silent)
            elif about == "start" and error is None and who in self._pools:
                self._watch(self._pools[who].wait.remote().future(), "pool", who)
                found.append(PoolReady(pool_id=who))
            elif about in {"start", "pool"}:
                # Also for a pool that was ended meanwhile, which the scheduler then no longer lists.
                # A rank that died during the start says nothing about the next try.
                refuses = isinstance(error, TinkerGymError) and not isinstance(error, RankLostError)
                refused = cast(TinkerGymError, error) if about == "start" and refuses else None
                found.append(PoolEnded(pool_id=who, error=refused))
            elif about == "engine_host" and who in self._engine_hosts:
                # Its method has returned, but the actor stays until it is killed.
                pool_id, actor = self._engine_hosts.pop(who)
                _kill(actor)
                why = error if isinstance(error, TinkerGymError) else None
                found.append(EngineHostEnded(pool_id=pool_id, engine_id=who, error=why))
            elif who in self._env_workers:
                pool_id, end = self._env_workers.end(who)
                remains = value if isinstance(value, WorkerRemains) else WorkerRemains()
                found.append(EnvWorkerEnded(pool_id=pool_id, worker_id=who, end=end, remains=remains))
        return found

    def memory(self) -> dict[str, dict[str, int]]:
        """Return the memory of each pool on each node in bytes; see `ProcessRunner`."""
        # Not among the promises that wake the scheduler: a size is no reason to look.
        actors = self._pools | {who: actor for who, (_, actor) in self._engine_hosts.items()}
        asks: dict[str, Callable[[], Future[OnNode]]] = {
            who: worker.memory for who, (_, worker) in self._env_workers.started().items()
        }
        asks |= {who: partial(_ask_memory, actor) for who, actor in actors.items()}
        said, helpers = self._memory.ask(asks), self._helpers()
        found = {one: self._placing.rank_bytes(one) for one in self._pools if one in said}
        for who, (node, size) in said.items():
            on_nodes = found.get(helpers.get(who, who), {})
            on_nodes[node] = on_nodes.get(node, 0) + size
        if self._in_cluster:
            return found
        return {pool_id: {"": sum(on_nodes.values())} for pool_id, on_nodes in found.items()}

    def start_job(self, pool_id: str, job_id: str) -> None:
        """Tell a ready pool to take a job."""
        self._pools[pool_id].start_job.remote(job_id)
        self._ask_at.pop(pool_id, None)

    def env_worker_ended(self, pool_id: str, worker_id: str, end: WorkerEnd, remains: WorkerRemains) -> None:
        """Tell a pool that an environment worker is dead."""
        if pool_id in self._pools:
            self._pools[pool_id].env_worker_ended.remote(worker_id, end, remains)

    def end_env_worker(self, pool_id: str, worker_id: str) -> None:
        """Kill an environment worker that is no longer needed, without a report."""
        if worker_id in self._env_workers:
            self._env_workers.end(worker_id)
        self.env_worker_ended(pool_id, worker_id, "not_needed", WorkerRemains())

    def end_pool(self, pool_id: str) -> None:
        """Kill a pool with its environment workers and engine hosts."""
        for known in (self._ask_at, self._addresses):
            known.pop(pool_id, None)
        _kill(self._pools.pop(pool_id, None))
        self._end_helpers(pool_id)
        # Last: from here on its resources are free for others.
        self._placing.forget(pool_id)

    def _end_helpers(self, pool_id: str) -> None:
        for worker_id in self._env_workers.of(pool_id):
            self._env_workers.end(worker_id)
        for engine_id, (served, actor) in list(self._engine_hosts.items()):
            if served == pool_id:
                del self._engine_hosts[engine_id]
                _kill(actor)

    def _helpers(self) -> dict[str, str]:
        """Return the pool of each environment worker and engine host."""
        hosts = {who: pool_id for who, (pool_id, _) in self._engine_hosts.items()}
        return self._env_workers.pools() | hosts

    def _ask_about_env_workers(self) -> None:
        now = time.monotonic()
        due = {pool_id for pool_id in self._pools if now >= self._ask_at.get(pool_id, now)}
        if not due:
            return
        # One question at a time, or a busy pool would collect them.
        waiting = {who for about, who in self._watched.values() if about in {"env_workers", "start"}}
        for pool_id in due - waiting:
            self._ask_at[pool_id] = now + _ASK_IDLE_SECONDS
            self._watch(self._pools[pool_id].env_worker_report.remote().future(), "env_workers", pool_id)

    def _watch(self, promise: Future[Any], about: str, who: str) -> None:
        self._watched[promise] = (about, who)
        promise.add_done_callback(self._note_resolved)

    def _note_resolved(self, promise: Future[Any]) -> None:
        """Called from a thread of Ray, or of an environment worker."""
        self._resolved.append(promise)
        self._wake()


def _ask_memory(actor: Any) -> Future[OnNode]:
    return actor.memory.remote().future()  # type: ignore[no-any-return]


def _kill(actor: Any) -> None:
    """End an actor's process, wherever it runs; Ray ends one that hangs after `ray_start.KILL_SECONDS`."""
    if actor is not None:
        with contextlib.suppress(Exception):
            ray.kill(actor, no_restart=True)


def _outcome(promise: Future[Any]) -> tuple[Any, BaseException | None]:
    """Return a promise's value, or the error; our own error if our code raised it."""
    error = promise.exception()
    if error is None:
        return promise.result(), None
    return None, error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
