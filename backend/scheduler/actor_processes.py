"""What runs inside the actors: a pool worker, an environment worker. Plain classes.

Each imports its dependencies when it starts, in its own process, so the others need not load them. Each dies
with the raylet that started it, because a hanging process would not react to Ray. What others need to know of
a process (its address, its memory) it tells itself: they may be on other machines.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backend import worker_url
from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerEnd, WorkerRemains
from backend.network.worker_calls import WorkerAddress
from backend.planning.pool_place import PoolPlace
from backend.private_folder import make_private
from backend.processes.children import die_with_parent, freeze_startup_objects
from backend.processes.exhaustion import end_when_exhausted
from backend.processes.machine_gpus import VISIBLE
from backend.scheduler.host_log import log_to_host
from backend.scheduler.process_runner import OnNode
from backend.workers.env_worker_child import EnvWorkerChild

if TYPE_CHECKING:
    from backend.learner.parallel.rank import RankOptions
    from backend.learner.parallel.rank_process import RankProcess


class PoolProcess:
    """Runs in an actor: a pool worker."""

    def __init__(self, config_json: str, pool_id: str, model: str, place_json: str) -> None:
        die_with_parent()
        log_to_host()
        self._config_json, self._pool_id, self._model = config_json, pool_id, model
        self._place = PoolPlace.from_json(place_json)
        if self._place.gpus:  # Before torch looks.
            os.environ[VISIBLE] = ",".join(self._place.gpus)
        self._worker: Any = None
        self._rank_pids: list[int] = []
        self._in_cluster = False
        self._token = secrets.token_urlsafe(32)
        self._listens, self._stopped = threading.Event(), threading.Event()

    def start(self) -> None:
        """Load the model, listen on this machine and register; raises our own error if this fails."""
        from backend.scheduler.ray_nodes import own_address
        from backend.workers.pool_worker import PoolWorker

        config = ServiceConfig.model_validate_json(self._config_json)
        self._in_cluster = bool(config.ray.address)
        if self._place.sleeps:  # Learner and engine have room only in turns.
            config = config.model_copy(update={"sleep_while_learning": True})
        _keep_private(config)
        self._worker = PoolWorker(
            config,
            pool_id=self._pool_id,
            model=self._model,
            url=_listens_at(config, self._pool_id, own_address()),
            token=self._token,
            start_ranks=self._start_ranks,
            place=self._place,
        )
        self._listens.set()
        freeze_startup_objects()
        end_when_exhausted()

    def address(self) -> tuple[str, str]:
        """Return its URL and token, once it listens."""
        self._listens.wait()
        return self._worker.url, self._token

    def memory(self) -> OnNode:
        """Return its node, and its memory there; on our own machine with all its ranks."""
        from backend.scheduler.ray_nodes import own_memory

        return own_memory(self._rank_pids)

    def wait(self) -> None:
        """Return when the process should end; a caller that waits for this notices its death at once."""
        self._stopped.wait()

    def start_job(self, job_id: str) -> None:
        """Take a job."""
        if self._worker is not None:
            self._worker.start_job(job_id)

    def env_worker_ended(self, worker_id: str, end: WorkerEnd, remains: WorkerRemains) -> None:
        """Issue a dead environment worker's episodes again."""
        if self._worker is not None:
            self._worker.env_worker_ended(worker_id, end, remains)

    def env_worker_report(self) -> Any:
        """Return an `EnvWorkerReport`, or None before the start has finished."""
        return None if self._worker is None else self._worker.env_worker_report()

    def _start_ranks(self, options: RankOptions) -> Sequence[RankProcess]:
        from backend.scheduler.ray_ranks import ray_ranks

        ranks = ray_ranks(self._place.ranks, options)
        if not self._in_cluster:  # There they count with what is planned, as they may be on other nodes.
            self._rank_pids = [rank.pid for rank in ranks]
        return ranks

    def stop(self) -> None:
        """Return the jobs to the queue and end."""
        if self._worker is not None:
            self._worker.close()
        self._stopped.set()


class EngineHostProcess:
    """Runs in an actor: an engine host."""

    def __init__(self, config_json: str, engine_id: str, pool_id: str, model: str, place_json: str) -> None:
        die_with_parent()
        log_to_host()
        self._place = PoolPlace.from_json(place_json)
        if self._place.gpus:  # Before torch looks.
            os.environ[VISIBLE] = ",".join(self._place.gpus)
        self._config_json, self._engine_id = config_json, engine_id
        self._pool_id, self._model = pool_id, model
        self._host: Any = None
        self._stopped = threading.Event()

    def run(self, address: tuple[str, str]) -> None:
        """Load the model, and serve the pool at this URL with this token until `stop`.

        Raises:
            TinkerGymError: The model cannot be loaded.
        """
        from backend.scheduler.ray_nodes import own_address
        from backend.workers.engine_host import EngineHost

        config = ServiceConfig.model_validate_json(self._config_json)
        _keep_private(config)
        node = own_address()
        try:
            self._host = EngineHost(
                config,
                engine_id=self._engine_id,
                pool_id=self._pool_id,
                model=self._model,
                node=node if config.ray.address else "",
                url=_listens_at(config, self._engine_id, node),
                token=secrets.token_urlsafe(32),
                pool=WorkerAddress(*address),
                place=self._place,
            )
            freeze_startup_objects()
            end_when_exhausted()
            self._stopped.wait()
        finally:
            self._stopped.set()  # Then `wait` returns, too.

    def wait(self) -> None:
        """Return when `run` does; a caller that waits for this notices its death at once."""
        self._stopped.wait()

    def memory(self) -> OnNode:
        """Return its node, and its memory there."""
        from backend.scheduler.ray_nodes import own_memory

        return own_memory()

    def stop(self) -> None:
        """End."""
        if self._host is not None:
            self._host.close()
        self._stopped.set()


class EnvWorkerProcess:
    """Runs in an actor of a cluster: starts and ends with the process of an environment worker."""

    def __init__(self, config_json: str, worker_id: str) -> None:
        die_with_parent()
        log_to_host()
        self._ended, self._remains = threading.Event(), WorkerRemains()
        config = ServiceConfig.model_validate_json(config_json)
        _keep_private(config)
        self._child = EnvWorkerChild(config, worker_id)

    def run(self, address: tuple[str, str]) -> WorkerRemains:
        """See `EnvWorkerChild.play`."""
        self._remains = self._child.play(address)
        self._ended.set()
        return self._remains

    def wait(self) -> WorkerRemains:
        """Return when `run` does; a caller that waits for this notices its death at once."""
        self._ended.wait()
        return self._remains

    def memory(self) -> OnNode:
        """Return its node, and its memory there."""
        from backend.scheduler.ray_nodes import own_memory

        return own_memory()

    def kill(self) -> None:
        """Kill a child that hangs; `run` then returns."""
        self._child.kill()


def _listens_at(config: ServiceConfig, name: str, host: str) -> str:
    """Return where a worker of this name listens on this machine."""
    if config.worker_transport == "unix" and not config.ray.address:
        return worker_url.unix_url(config.run_dir / f"{name}.sock")
    worker_url.require_private(host, private_network=config.private_network)
    return worker_url.any_port(host)


def _keep_private(config: ServiceConfig) -> None:
    """Let only the service's user read what this process writes; a cluster's nodes start it otherwise."""
    os.umask(0o077)
    make_private(config.run_dir)
