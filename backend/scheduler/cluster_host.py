"""The scheduler's host in a cluster that somebody else runs: joins it, and notices when it is gone.

While there is no cluster, jobs return to the queue when their leases expire, and say what they wait for.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time

from backend.config import ServiceConfig
from backend.processes.ends import POOLS_STOP_SECONDS
from backend.scheduler import ray_start
from backend.scheduler.cluster_door import bootstrap_address, require_cluster, require_open, set_token
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.ticking import Ticking
from backend.store.key_rows import LOCAL_TENANT
from backend.store.service_parts import CLUSTER
from backend.store.store import ServiceStore, Store
from tinkergym.errors import TinkerGymError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 5
_SILENT_SECONDS = 8.0
"""Ray's own driver would only notice after a minute, and end this process without a word."""
_AGAIN_SECONDS = 2.0


def namespace_of(store: Store) -> str:
    """Return the name under which a service's actors are found: the same for all hosts of one database.

    Not by the database's URL: hosts may spell it differently, and a standby must find the actors.
    """
    return f"tinkergym-{hashlib.sha256(store.unique_name().encode()).hexdigest()[:12]}"


def run_in_cluster(config: ServiceConfig, store: Store, stop: threading.Event) -> None:
    """Run the scheduler until `stop` is set or the cluster is gone; then this process ends.

    Raises:
        ConfigError: The token's file cannot be read.
    """
    os.environ.update(set_token(config))
    _end_on_signals(stop)
    service = store.service()
    lock = service.scheduler_lock()
    # The claim first: of several hosts only one connects to the cluster and writes to the queue.
    while not (lock.held() and _joined(config, store)):
        if stop.wait(_AGAIN_SECONDS):
            return
    _end_on_signals(stop)  # Ray has just installed its own handlers, which end the process immediately.
    service.forget_part(CLUSTER)
    from backend.scheduler import ray_cluster

    ticking = Ticking(lambda wake: Scheduler(service, ray_cluster.RayWorkers(config, wake), config), lock)
    cluster = _Answers()
    parent = os.getppid()
    while not stop.wait(_LOOK_SECONDS) and os.getppid() == parent:
        if cluster.silent_seconds > _SILENT_SECONDS:
            _log.error("the Ray cluster at %s does not answer", config.ray.address)
            logging.shutdown()
            # Ray's own end would wait for the cluster. The next run of this process waits in the store.
            os._exit(1)
    ticking.stop()
    if stop.is_set() and lock.held():  # Otherwise the workers are another scheduler's.
        ray_cluster.stop_everything(seconds=POOLS_STOP_SECONDS)


def _end_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _joined(config: ServiceConfig, store: Store) -> bool:
    try:
        # A gateway may come later, and a database without a tenant has no identity.
        store.keys.ensure_tenant(LOCAL_TENANT)
        namespace = namespace_of(store)
        address = bootstrap_address(config.ray.address)
        require_open(address)  # Cheap, for as long as there is no cluster.
        require_cluster(config)
    except TinkerGymError as error:
        _log.warning("%s", error)
        with contextlib.suppress(TinkerGymError):  # The database may be what is away.
            _wait_in_the_store(store.service(), error.message)
        return False
    ray_start.join_cluster(address, namespace)
    return True


def _wait_in_the_store(service: ServiceStore, reason: str) -> None:
    """Do the part of a scheduler that needs no process: jobs without an owner are queued, with the reason."""
    now = time.time()
    service.touch_part("scheduler", now)
    service.touch_part(CLUSTER, now)
    service.requeue_expired(now)
    queued = [job for job in service.queued_jobs() if job.reason != reason]
    if queued:
        service.explain_queue([job.job_id for job in queued], reason)


class _Answers:
    """Asks the cluster's head every second, in a thread that may wait for the answer."""

    def __init__(self) -> None:
        self._answered_at = time.monotonic()
        threading.Thread(target=self._ask, name="cluster", daemon=True).start()

    @property
    def silent_seconds(self) -> float:
        """The time since the last answer."""
        return time.monotonic() - self._answered_at

    def _ask(self) -> None:
        from backend.scheduler.ray_nodes import head_answers

        while True:
            if head_answers(_ANSWER_SECONDS):
                self._answered_at = time.monotonic()
            time.sleep(_LOOK_SECONDS)
