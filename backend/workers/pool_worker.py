"""A pool worker: one base model in one process, with its learner, its engine, its jobs and its endpoint.

Everything acknowledged is in the store; when it is killed, the next one continues from there.

    pool_worker.PoolWorker   starts the parts in order, and ends them in order
    model_loader             loads engine and learner of a base model
    pool_jobs                the jobs that run here, a thread each
    pool_routes              what the endpoint serves; sample_router: where a request for tokens is answered
    pool_health              heartbeats, and rest while idle
"""

from __future__ import annotations

import logging
import os
import sys

import torch

from backend.config import ServiceConfig
from backend.episodes.boards import Boards, EnvWorkerReport
from backend.episodes.captured_tokens import CapturedTokens
from backend.episodes.env_worker_end import WorkerEnd, WorkerRemains
from backend.learner.parallel.rank_process import StartRanks, child_ranks
from backend.planning.pool_place import PoolPlace
from backend.policies.call_bell import CallBell
from backend.processes.ends import JOBS_STOP_SECONDS
from backend.store.store import Store
from backend.workers.endpoint import PoolEndpoint
from backend.workers.guest_models import GuestModels
from backend.workers.model_loader import ModelLoader
from backend.workers.pool_health import PoolHealth
from backend.workers.pool_images import PoolImages
from backend.workers.pool_jobs import PoolJobs
from backend.workers.pool_routes import PoolRoutes
from backend.workers.shared_parts import SharedParts

_log = logging.getLogger(__name__)
_NOTHING_REMAINS = WorkerRemains()
_LONGEST_POLL_SECONDS = 10.0
"""A worker that waits for episodes asks again after at most this long."""

SWITCH_SECONDS = 0.001
"""For how long another thread may keep Python's lock while the engine's or the learner's thread needs it.

A learner's micro-batch releases it some hundred times, each for about ten microseconds, and waits this long
for a thread that reads requests. The engine does so a few times per forward pass, and prepares the next one
in one go.
"""


class PoolWorker:
    """Serves one model: trains its jobs, and samples for all clients.

    It listens before the store knows of it, and the store no longer knows of it before anything is unloaded.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        pool_id: str,
        model: str,
        url: str,
        token: str,
        start_ranks: StartRanks = child_ranks,
        place: PoolPlace | None = None,
    ) -> None:
        """Load the model and start listening.

        Args:
            config: The service's settings.
            pool_id: Its name in the store.
            model: The model it serves.
            url: Where to listen; see `backend.worker_url.listen`.
            token: The token that every request must present.
            start_ranks: Starts the ranks of its learner, if there are several.
            place: Where its processes run, as planned; None is this machine, as the settings say.

        Raises:
            UnknownModelError: There is no such model.
            ConfigError: The configured device does not exist.
            InvalidRequestError: The engine or the learner cannot run it.
            MissingExtraError: The configured engine is not installed.
        """
        torch.set_num_threads(config.torch_threads)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._config, self._pool_id = config, pool_id
        store = Store.open(config.store_url, part="pool")
        self.store = store.service()
        self._images = PoolImages(config, store.tenant)
        loader = ModelLoader(config, self.store, model, start_ranks, place)
        self.own = loader.load_own()
        self.boards = Boards(require_images=self._images.require)
        self._parts = SharedParts(
            config=config,
            store=self.store,
            loader=loader,
            own=self.own,
            guests=GuestModels(loader.load_guest),
            boards=self.boards,
            bell=CallBell(),
            captured=CapturedTokens(),
        )
        self.jobs = PoolJobs(self._parts, pool_id)
        self._health = PoolHealth(self._parts, pool_id, self.jobs.pulses)
        self.routes = PoolRoutes(self._parts, self.jobs, self._images, self._health)
        self._endpoint = PoolEndpoint(
            self.routes, url, token, samples_in_flight=config.limits.samples_in_flight
        )
        self.url = self._endpoint.url
        self._health.start(self.url, token)
        _log.info("pool %s serves %s with process %d", pool_id, model, os.getpid())

    def start_job(self, job_id: str) -> None:
        """Take a queued job and run it in its own thread; does nothing if another worker has it."""
        self.jobs.start(job_id)

    def env_worker_ended(
        self, worker_id: str, end: WorkerEnd = "died", remains: WorkerRemains = _NOTHING_REMAINS
    ) -> None:
        """Issue the episodes of a dead environment worker again."""
        if remains.in_calls:
            found = (worker_id, end, remains.in_calls, remains.stall)
            _log.warning("environment worker %s ended (%s) in calls of %s %s", *found)
        self.boards.forget_worker(worker_id, remains.in_calls, end=end)

    def env_worker_report(self) -> EnvWorkerReport:
        """Return which environment workers play for which owner, which hang, and which owners need some."""
        return self.boards.report(self._config.lease_seconds + _LONGEST_POLL_SECONDS)

    def close(self) -> None:
        """Return the jobs to the queue and stop, within seconds."""
        self.jobs.close(JOBS_STOP_SECONDS)
        self._health.close()
        # Calls that wait for episodes end by themselves, before the endpoint would break them.
        self.boards.shut()
        self._endpoint.close()
        self._images.close()
        self.store.remove_pool(self._pool_id)
        self._parts.guests.close()
        self.own.close()
