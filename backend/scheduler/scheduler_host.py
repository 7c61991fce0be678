"""`python -m backend.scheduler.scheduler_host`: the Ray driver, which starts Ray and runs the scheduler.

It ends with Ray. The supervisor restarts it; everything it needs is in the settings and the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from backend.config import ServiceConfig
from backend.episodes import env_worker_end
from backend.private_folder import make_private
from backend.processes.children import MARK_VARIABLE
from backend.processes.ends import (
    POOLS_STOP_SECONDS,
    RAY_STOP_SECONDS,
    REMAINS_SECONDS,
    WATCH_SECONDS,
    wait_for_end,
)
from backend.processes.foreign_code import HOST_VARIABLE
from backend.processes.guardian import guarded
from backend.scheduler import early_worker, ray_start
from backend.scheduler.cluster_host import run_in_cluster
from backend.scheduler.host_log import log_to_host
from backend.scheduler.ray_start import child_environment, remove_old_logs
from backend.scheduler.scheduler import Scheduler
from backend.scheduler.ticking import Ticking
from backend.store.store import Store

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 60.0
"""Interval between checks for old logs."""
_CORE_PROCESSES = ("gcs_server", "raylet")
"""Processes without which Ray is dead, although its driver would only notice after a minute."""


def _main() -> int:
    """Run until a signal arrives, Ray dies or the parent process is gone."""
    log_to_host()
    config = ServiceConfig.from_environment()
    os.environ.update(child_environment())
    os.umask(0o077)  # What its children write is for the service's user only.
    stop = threading.Event()
    make_private(config.run_dir)
    # A killed host leaves processes behind: Ray ends its own late, or not at all, and until then they would
    # work on jobs that the store considers free.
    _end_processes(config.digest)
    for left in [*config.run_dir.glob("ranks-*"), config.run_dir / env_worker_end.FOLDER]:
        shutil.rmtree(left, ignore_errors=True)
    os.environ[HOST_VARIABLE] = config.digest
    store = Store.open(config.store_url, part="scheduler")
    service = store.service()
    if config.ray.address:
        run_in_cluster(config, store, stop)
        return 0
    # For this run of the host: the guardian of the last one must not end what this one starts.
    mark = f"{os.environ.get(MARK_VARIABLE, config.digest)}:{secrets.token_hex(8)}"
    os.environ[MARK_VARIABLE] = mark
    # A different one than the supervisor's, because both may be killed together.
    with guarded(mark), _ray_folder(config) as folder:
        early = early_worker.start(config.early_worker_socket) if config.preload else None
        ray_start.start_ray(folder)
        from backend.scheduler import ray_cluster, ray_env_workers

        # Ray has just installed its own handlers, which end the process immediately.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        core = _core_processes()
        children: ray_env_workers.Children = {}  # They outlive a scheduler that loses its claim.
        ticking = Ticking(
            lambda wake: Scheduler(service, ray_cluster.RayWorkers(config, wake, children), config),
            service.scheduler_lock(),
        )
        _watch(config, core, stop, early)
        ticking.stop()
        _within(RAY_STOP_SECONDS, lambda: ray_cluster.stop_everything(seconds=POOLS_STOP_SECONDS))
    return 0


def _watch(
    config: ServiceConfig,
    core: Sequence[psutil.Process],
    stop: threading.Event,
    early: subprocess.Popen[bytes] | None,
) -> None:
    """Return when it is time to stop; end this process at once when Ray dies."""
    parent = os.getppid()
    swept_at = time.monotonic()
    ids = [parent, *(process.pid for process in core)]
    while not stop.is_set():
        ended = wait_for_end(ids, WATCH_SECONDS)
        if time.monotonic() - swept_at >= _SWEEP_SECONDS:
            swept_at = time.monotonic()
            remove_old_logs(config.ray_dir)
        if early is not None:
            early.poll()  # Reap it: Ray's processes do so for all others.
        if os.getppid() != parent:
            _log.warning("the supervisor is gone")
            return
        for process in core if ended else ():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                _log.error("Ray's process %d died; the service restarts Ray", process.pid)
                logging.shutdown()
                # Without a clean shutdown: remains are ended by the next run of this process.
                os._exit(1)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Run it in a thread that is abandoned after `seconds`: Ray waits a minute for its own dead parts."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)


@contextlib.contextmanager
def _ray_folder(config: ServiceConfig) -> Iterator[Path]:
    """A folder for Ray inside the private `run_dir`, emptied of the remains of a killed predecessor."""
    folder = config.ray_dir
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        _end_processes(config.digest)
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(digest: str) -> None:
    """Kill everything that a host of this data folder started, including grandchildren."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(HOST_VARIABLE) == digest:
                process.kill()
                left.append(process)
    psutil.wait_procs(left, timeout=REMAINS_SECONDS)


def _core_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name() in _CORE_PROCESSES]


def main() -> None:
    """Run until the service ends, and end the process."""
    status = _main()
    # Not sys.exit: Ray's own shutdown would wait for processes that are already gone.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
