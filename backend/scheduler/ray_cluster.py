"""Runs our processes as actors of Ray; `ray_start` starts it, and only `ray_ranks` also imports it.

Ray holds no state that matters. Pools and environment workers are detached, named actors, so that a new
scheduler finds those of the last one; their work is recorded in the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, cast

import ray

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerEnd
from backend.errors import RankLostError
from backend.scheduler import early_worker
from backend.scheduler.actor_processes import EnvWorkerProcess, PoolProcess, SchedulerProcess
from backend.scheduler.process_memory import resident_bytes
from backend.scheduler.workers import (
    Change,
    EnvWorkerEnded,
    EnvWorkersSeen,
    PoolAddress,
    PoolEnded,
    PoolReady,
    Running,
)
from tinkergym.errors import TinkerGymError

_log = logging.getLogger(__name__)

_SCHEDULER = "scheduler"
_SEPARATOR = "|"
_ASK_SECONDS = 0.5
"""How often pools with jobs are asked about their environment workers."""
_ASK_IDLE_SECONDS = 5.0
"""How often the others are."""


def start_scheduler(config: ServiceConfig) -> Any:
    """Start the scheduler's actor; Ray restarts it whenever it dies."""
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=2)(SchedulerProcess)
    return actor.options(name=_SCHEDULER, lifetime="detached").remote(config.model_dump_json(), RayWorkers)


def stop_everything(scheduler: Any, *, seconds: float) -> None:
    """Let the scheduler stop, then let the pools return their jobs to the queue, within `seconds`."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(Exception):
        ray.get(scheduler.stop.remote(), timeout=seconds / 2)
    stops = []
    for name in _actor_names():
        if name.startswith("pool" + _SEPARATOR):
            with contextlib.suppress(ValueError):
                stops.append(ray.get_actor(name).stop.remote())
    with contextlib.suppress(Exception):
        ray.wait(stops, num_returns=len(stops), timeout=max(0.1, deadline - time.monotonic()))
    ray.shutdown()


class RayWorkers:
    """Pools and environment workers as Ray actors; implements `workers.WorkerPool`."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config_json = config.model_dump_json()
        self._early_worker = config.early_worker_socket
        self._pools: dict[str, Any] = {}
        self._env_workers: dict[str, tuple[str, Any]] = {}
        self._pids: dict[str, int] = {}
        """Pools and environment workers, by their ids."""
        self._silent: set[str] = set()
        """Environment workers that were ended because they hang."""
        self._ask_at: dict[str, float] = {}
        """When to ask a pool about its environment workers, on the monotonic clock; missing: now."""
        self._watched: dict[Any, tuple[str, str]] = {}
        """Ray's reference -> (kind, id): it resolves when the event happens or the process dies."""

    def running(self) -> list[Running]:
        """Return what an earlier scheduler left running, and watch it from now on."""
        found: list[Running] = []
        for name in _actor_names():
            kind, _, rest = name.partition(_SEPARATOR)
            if kind not in {"pool", "env_worker"}:
                continue
            try:
                actor = ray.get_actor(name)
            except ValueError:  # It died a moment ago.
                continue
            pool_id, _, tail = rest.partition(_SEPARATOR)
            if kind == "pool":
                self._pools[pool_id] = actor
                self._watched[actor.pid.remote()] = ("pid", pool_id)
                self._watched[actor.wait.remote()] = ("pool", pool_id)
                found.append(Running(kind="pool", pool_id=pool_id, worker_id=pool_id, model=tail))
            else:
                self._env_workers[tail] = (pool_id, actor)
                self._watched[actor.pid.remote()] = ("pid", tail)
                self._watched[actor.wait.remote()] = ("env_worker", tail)
                found.append(Running(kind="env_worker", pool_id=pool_id, worker_id=tail, model=""))
        return found

    def start_pool(self, address: PoolAddress) -> None:
        """Start a pool; `PoolReady` or `PoolEnded` follows."""
        name = _SEPARATOR.join(("pool", address.pool_id, address.model))
        python = early_worker.python_in(self._early_worker)
        actor = (
            ray.remote(num_cpus=0, max_restarts=0, max_concurrency=16)(PoolProcess)
            .options(
                name=name,
                lifetime="detached",
                runtime_env={"py_executable": python} if python else None,
            )
            .remote(self._config_json, address)
        )
        self._pools[address.pool_id] = actor
        self._watched[actor.pid.remote()] = ("pid", address.pool_id)
        self._watched[actor.start.remote()] = ("start", address.pool_id)

    def start_env_worker(self, address: PoolAddress, worker_id: str) -> None:
        """Start an environment worker that plays for a pool, which need not be ready yet."""
        name = _SEPARATOR.join(("env_worker", address.pool_id, worker_id))
        actor = (
            ray.remote(num_cpus=0, max_restarts=0, max_concurrency=4)(EnvWorkerProcess)
            .options(name=name, lifetime="detached")
            .remote(self._config_json, address, worker_id)
        )
        self._env_workers[worker_id] = (address.pool_id, actor)
        self._watched[actor.pid.remote()] = ("pid", worker_id)
        self._watched[actor.run.remote()] = ("env_worker", worker_id)

    def has_changes(self) -> bool:
        """Whether `changes` would return any."""
        self._ask_about_env_workers()
        return bool(self._kept(most=1))

    def changes(self) -> list[Change]:
        """Return what happened since the last call."""
        self._ask_about_env_workers()
        found: list[Change] = []
        for promise in self._kept(most=len(self._watched)):
            about, who = self._watched.pop(promise)
            value, error = _outcome(promise)
            if about == "pid":
                if error is None:
                    self._pids[who] = value
            elif about == "env_workers":
                if error is None and value is not None:
                    if value.busy:
                        self._ask_at[who] = min(self._ask_at[who], time.monotonic() + _ASK_SECONDS)
                    found.append(EnvWorkersSeen(pool_id=who, owners=value.owners, wanted=value.wanted))
                    self._kill_silent(value.silent)
            elif about == "start" and error is None and who in self._pools:
                self._watched[self._pools[who].wait.remote()] = ("pool", who)
                found.append(PoolReady(pool_id=who))
            elif about in {"start", "pool"}:
                if about == "pool":
                    self._pids.pop(
                        who, None
                    )  # Dead, and its process id may belong to another process by now.
                # A rank that died during the start says nothing about the next try.
                refuses = isinstance(error, TinkerGymError) and not isinstance(error, RankLostError)
                refused = cast(TinkerGymError, error) if about == "start" and refuses else None
                found.append(PoolEnded(pool_id=who, error=refused))
            elif who in self._env_workers:
                pool_id, actor = self._env_workers.pop(who)
                self._pids.pop(who, None)  # as above
                self._kill(who, actor)  # Its process still exists if it ended with an exception.
                end: WorkerEnd = "silent" if who in self._silent else "died"
                self._silent.discard(who)
                found.append(EnvWorkerEnded(pool_id=pool_id, worker_id=who, end=end))
        return found

    def memory(self) -> dict[str, int]:
        """Return by pool the memory in bytes with its environment workers, without ranks."""
        processes: dict[str, list[int]] = {
            pool_id: [self._pids[pool_id]] for pool_id in self._pools if pool_id in self._pids
        }
        for worker_id, (pool_id, _) in self._env_workers.items():
            if pool_id in processes and worker_id in self._pids:
                processes[pool_id].append(self._pids[worker_id])
        return resident_bytes(processes)

    def start_job(self, pool_id: str, job_id: str) -> None:
        """Tell a ready pool to take a job."""
        self._pools[pool_id].start_job.remote(job_id)
        self._ask_at.pop(pool_id, None)

    def env_worker_ended(self, pool_id: str, worker_id: str, end: WorkerEnd) -> None:
        """Tell a pool that an environment worker is dead."""
        if pool_id in self._pools:
            self._pools[pool_id].env_worker_ended.remote(worker_id, end)

    def end_env_worker(self, pool_id: str, worker_id: str) -> None:
        """Kill an environment worker that is no longer needed, without a report."""
        _, actor = self._env_workers.pop(worker_id, ("", None))
        self._kill(worker_id, actor)
        self.env_worker_ended(pool_id, worker_id, "not_needed")

    def _kill_silent(self, worker_ids: Sequence[str]) -> None:
        for worker_id in worker_ids:
            if worker_id in self._env_workers:
                _log.warning("environment worker %s hangs", worker_id)
                self._silent.add(worker_id)
                self._kill(worker_id, self._env_workers[worker_id][1])

    def end_pool(self, pool_id: str) -> None:
        """Kill a pool and its environment workers."""
        self._ask_at.pop(pool_id, None)
        self._kill(pool_id, self._pools.pop(pool_id, None))
        for worker_id, (served, actor) in list(self._env_workers.items()):
            if served == pool_id:
                del self._env_workers[worker_id]
                self._silent.discard(worker_id)
                self._kill(worker_id, actor)

    def _kill(self, process_id: str, actor: Any) -> None:
        if actor is not None:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        pid = self._pids.pop(process_id, None)
        if pid is not None:
            # Ray asks the process to end; a hanging one does not react.
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _ask_about_env_workers(self) -> None:
        now = time.monotonic()
        due = {pool_id for pool_id in self._pools if now >= self._ask_at.get(pool_id, now)}
        if not due:
            return
        waiting = {who for about, who in self._watched.values() if about in {"env_workers", "start"}}
        for pool_id in due - waiting:
            self._ask_at[pool_id] = now + _ASK_IDLE_SECONDS
            self._watched[self._pools[pool_id].env_worker_report.remote()] = ("env_workers", pool_id)

    def _kept(self, *, most: int) -> list[Any]:
        """Return up to `most` of the references that have resolved."""
        if not self._watched:
            return []
        kept, _ = ray.wait(list(self._watched), num_returns=most, timeout=0)
        return cast(list[Any], kept)


def _outcome(promise: Any) -> tuple[Any, BaseException | None]:
    """Return a reference's value, or the error; our own error if our code raised it."""
    try:
        return ray.get(promise), None
    except ray.exceptions.RayTaskError as error:
        return None, error.cause
    except ray.exceptions.RayError as error:
        return None, error


def _actor_names() -> list[str]:
    return cast(list[str], ray.util.list_named_actors(all_namespaces=False))
