"""The environment workers of this scheduler's pools, each in an actor or in a child of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import ray

from backend.admission.model_wishes import share
from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerEnd
from backend.scheduler.actor_processes import EnvWorkerProcess
from backend.scheduler.env_worker_handles import EnvWorkerHandle, WorkerInActor
from backend.scheduler.process_runner import Running
from backend.scheduler.ray_groups import ENV_WORKER_BUNDLE
from backend.scheduler.ray_placing import Placing

_log = logging.getLogger(__name__)

Children = dict[str, tuple[str, EnvWorkerHandle]]
"""Environment workers that are children of this process, by id: their pool, and the worker."""


class RayEnvWorkers:
    """Each is listed with the one pool that it serves, from when it is asked for until it is ended.

    It has a process as soon as its pool has a place. `children` lists the same ones as long as they live.
    """

    def __init__(
        self,
        config: ServiceConfig,
        placing: Placing,
        runtime_env: dict[str, Any],
        children: Children,
        start_child: Callable[[ServiceConfig, str], EnvWorkerHandle],
    ) -> None:
        """Start nothing yet; the arguments are those of `RayWorkers`."""
        self._config, self._config_json = config, config.model_dump_json()
        self._placing, self._runtime_env = placing, runtime_env
        self._children, self._start_child = children, start_child
        self._cpus = share(config) * config.ray.env_worker_cpus
        self._listed: dict[str, tuple[str, EnvWorkerHandle | None]] = {
            worker_id: (pool_id, worker) for worker_id, (pool_id, worker) in children.items()
        }
        self._silent: set[str] = set()
        """Those that were ended because they hang."""

    def __contains__(self, worker_id: str) -> bool:
        """Whether a worker was asked for and not ended."""
        return worker_id in self._listed

    def adopt(self, pool_id: str, worker_id: str, actor: Any) -> None:
        """List an actor that the last scheduler left running."""
        self._listed[worker_id] = (pool_id, WorkerInActor(actor))

    def want(self, pool_id: str, worker_id: str) -> None:
        """List a worker that starts when its pool has a place."""
        self._listed[worker_id] = (pool_id, None)

    def started(self) -> dict[str, tuple[str, EnvWorkerHandle]]:
        """Return those with a process, by id: their pool, and the worker."""
        return {who: (pool_id, one) for who, (pool_id, one) in self._listed.items() if one is not None}

    def of(self, pool_id: str, *, waiting: bool = False) -> list[str]:
        """Return the workers of a pool, or only those `waiting` for its place."""
        return [
            who
            for who, (pool, worker) in self._listed.items()
            if pool == pool_id and (worker is None or not waiting)
        ]

    def pools(self) -> dict[str, str]:
        """Return each worker's pool."""
        return {who: pool_id for who, (pool_id, _) in self._listed.items()}

    def start(self, pool_id: str, worker_id: str, address: Any) -> Future[Any]:
        """Start a worker of a pool that has a place; the promise resolves when the worker ends."""
        worker = self._worker(pool_id, worker_id)
        self._listed[worker_id] = (pool_id, worker)
        return worker.run(address)

    def _worker(self, pool_id: str, worker_id: str) -> EnvWorkerHandle:
        if not self._config.ray.address:
            worker = self._start_child(self._config, worker_id)
            self._children[worker_id] = (pool_id, worker)
            return worker
        # Those of further tenants are outside of the pool's own resources, wherever there is room.
        inside = sum(pool == pool_id for pool, _ in self.started().values()) < self._config.env_workers
        return WorkerInActor(
            ray.remote(max_restarts=0, max_concurrency=4)(EnvWorkerProcess)
            .options(
                name=str(Running(kind="env_worker", pool_id=pool_id, worker_id=worker_id)),
                lifetime="detached",
                num_cpus=self._cpus,
                label_selector=None if inside else self._placing.anywhere(),
                runtime_env=self._runtime_env or None,
                scheduling_strategy=self._placing.bundle(pool_id, ENV_WORKER_BUNDLE) if inside else None,
            )
            .remote(self._config_json, worker_id)
        )

    def kill_silent(self, worker_ids: Sequence[str]) -> None:
        """Kill workers that hang, so that they report what they were doing; end them if they hang still."""
        for worker_id in worker_ids:
            _, worker = self._listed.get(worker_id, ("", None))
            if worker is None:
                continue
            if worker_id in self._silent:
                worker.end()  # The actor hangs as well.
            else:
                _log.warning("environment worker %s hangs", worker_id)
                self._silent.add(worker_id)
                worker.kill()  # It then reports what its child was doing.

    def end(self, worker_id: str) -> tuple[str, WorkerEnd]:
        """End a worker if it runs, and forget it; returns its pool, and how it had ended if by itself."""
        pool_id, worker = self._listed.pop(worker_id)
        self._children.pop(worker_id, None)
        end: WorkerEnd = "silent" if worker_id in self._silent else "died"
        self._silent.discard(worker_id)
        if worker is not None:
            worker.end()  # An actor stays when its child has ended.
        return pool_id, end
