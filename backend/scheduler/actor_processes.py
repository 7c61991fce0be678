"""What runs inside the actors: a pool worker, an environment worker, the scheduler. Plain classes.

Each imports its dependencies when it starts, in its own process, so the others need not load them. Each dies
with the raylet that started it, which dies with the host, because a hanging process would not react to Ray.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerEnd
from backend.processes.children import die_with_parent, freeze_startup_objects
from backend.processes.foreign_code import environment_for_packs
from backend.scheduler.workers import PoolAddress, WorkerPool

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1


class PoolProcess:
    """Runs in an actor: a pool worker."""

    def __init__(self, config_json: str, address: PoolAddress) -> None:
        die_with_parent()
        self._config_json, self._address = config_json, address
        self._worker: Any = None
        self._stopped = threading.Event()

    def pid(self) -> int:
        """Return the process's id, to kill it when it hangs."""
        return os.getpid()

    def start(self) -> None:
        """Load the model and listen; raises our own error if this fails."""
        from backend.scheduler.ray_ranks import ray_ranks
        from backend.workers.pool_worker import PoolWorker

        _log_to_stderr()
        config = ServiceConfig.model_validate_json(self._config_json)
        self._worker = PoolWorker(
            config,
            pool_id=self._address.pool_id,
            model=self._address.model,
            url=self._address.url,
            token=self._address.token,
            start_ranks=ray_ranks,
        )
        freeze_startup_objects()

    def wait(self) -> None:
        """Return when the process should end; a caller that waits for this notices its death at once."""
        self._stopped.wait()

    def start_job(self, job_id: str) -> None:
        """Take a job."""
        if self._worker is not None:
            self._worker.start_job(job_id)

    def env_worker_ended(self, worker_id: str, end: WorkerEnd) -> None:
        """Issue a dead environment worker's episodes again."""
        if self._worker is not None:
            self._worker.env_worker_ended(worker_id, end)

    def env_worker_report(self) -> Any:
        """Return an `EnvWorkerReport`, or None before the start has finished."""
        return None if self._worker is None else self._worker.env_worker_report()

    def stop(self) -> None:
        """Return the jobs to the queue and end."""
        if self._worker is not None:
            self._worker.close()
        self._stopped.set()


class EnvWorkerProcess:
    """Runs in an actor: starts and ends with the process of an environment worker."""

    def __init__(self, config_json: str, address: PoolAddress, worker_id: str) -> None:
        die_with_parent()
        self._config_json, self._address, self._worker_id = config_json, address, worker_id
        self._ended = threading.Event()

    def pid(self) -> int:
        """Return the process's id, to kill it when it hangs."""
        return os.getpid()

    def run(self) -> None:
        """Play in a child until it ends: packs must not run in a process that is connected to Ray."""
        config = ServiceConfig.model_validate_json(self._config_json)
        question = {
            "config": config.model_dump(mode="json"),
            "url": self._address.url,
            "token": self._address.token,
            "worker_id": self._worker_id,
        }
        try:
            # The kernel ends it with this thread, which waits for it.
            child = subprocess.run(
                [sys.executable, "-m", "backend.workers.env_worker_process"],
                input=json.dumps(question).encode(),
                env=environment_for_packs(config.environment_variables),
                start_new_session=True,
                check=False,
            )
            _log.warning("environment worker %s ended (%d)", self._worker_id, child.returncode)
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Return when `run` does; a caller that waits for this notices its death at once."""
        self._ended.wait()


class SchedulerProcess:
    """Runs in an actor: the scheduler, in its own thread."""

    def __init__(self, config_json: str, start_workers: Callable[[ServiceConfig], WorkerPool]) -> None:
        die_with_parent()
        _log_to_stderr()
        from backend.scheduler.scheduler import Scheduler
        from backend.store.store import Store

        config = ServiceConfig.model_validate_json(config_json)
        self._stop = threading.Event()
        store = Store.open(config.store_url, part="scheduler").service()
        self._scheduler = Scheduler(store, start_workers(config), config)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                if self._scheduler.due():
                    self._scheduler.tick()
            except Exception:
                # The next tick retries what this one did not finish (a full disk, a locked database).
                _log.exception("error in the scheduler")
                self._stop.wait(1.0)

    def pid(self) -> int:
        """Return the process's id, to kill it when it hangs."""
        return os.getpid()

    def stop(self) -> None:
        """End after the current tick."""
        self._stop.set()
        self._thread.join(timeout=5.0)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
