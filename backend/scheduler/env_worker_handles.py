"""An environment worker as the scheduler holds it: in an actor of a cluster, or a child of this process.

Our own Ray ends with this process, so an actor would only cost a second process, which Ray wakes a hundred
times a second.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from typing import Any, Protocol

import ray

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import WorkerRemains
from backend.scheduler.process_runner import OnNode
from backend.workers.env_worker_child import EnvWorkerChild


class EnvWorkerHandle(Protocol):
    """A started environment worker. Every method returns at once."""

    def run(self, address: Any) -> Future[WorkerRemains]:
        """Let it play for the pool with this reference to a URL and a token, until it ends."""
        ...

    def watched(self) -> Future[WorkerRemains]:
        """Resolve when `run` does, which another scheduler has called."""
        ...

    def memory(self) -> Future[OnNode]:
        """Return its node, and its memory there."""
        ...

    def kill(self) -> None:
        """Kill one that hangs; `run` then tells what it was doing."""
        ...

    def end(self) -> None:
        """End it, without a report."""
        ...


class WorkerInActor:
    """An actor, `EnvWorkerProcess`, that starts the worker on its node."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def run(self, address: Any) -> Future[WorkerRemains]:
        """See `EnvWorkerHandle`."""
        return self._actor.run.remote(address).future()  # type: ignore[no-any-return]

    def watched(self) -> Future[WorkerRemains]:
        """See `EnvWorkerHandle`."""
        return self._actor.wait.remote().future()  # type: ignore[no-any-return]

    def memory(self) -> Future[OnNode]:
        """See `EnvWorkerHandle`."""
        return self._actor.memory.remote().future()  # type: ignore[no-any-return]

    def kill(self) -> None:
        """See `EnvWorkerHandle`."""
        self._actor.kill.remote()

    def end(self) -> None:
        """See `EnvWorkerHandle`."""
        with contextlib.suppress(Exception):
            ray.kill(self._actor, no_restart=True)


class WorkerHere:
    """A child of this process, which ends with the scheduler's thread, though not with a lost claim."""

    def __init__(self, config: ServiceConfig, worker_id: str) -> None:
        self._child, self._worker_id = EnvWorkerChild(config, worker_id), worker_id
        self._ended: Future[WorkerRemains] = Future()

    def run(self, address: Any) -> Future[WorkerRemains]:
        """See `EnvWorkerHandle`."""
        name = f"environment worker {self._worker_id}"
        threading.Thread(target=self._play, args=(address,), name=name, daemon=True).start()
        return self._ended

    def watched(self) -> Future[WorkerRemains]:
        """See `EnvWorkerHandle`."""
        return self._ended

    def _play(self, address: Any) -> None:
        try:
            self._ended.set_result(self._child.play(ray.get(address)))
        except Exception as error:  # Its pool is gone.
            self._child.kill()
            self._ended.set_exception(error)

    def memory(self) -> Future[OnNode]:
        """See `EnvWorkerHandle`."""
        known: Future[OnNode] = Future()
        known.set_result(("", self._child.memory()))
        return known

    def kill(self) -> None:
        """See `EnvWorkerHandle`."""
        self._child.kill()

    def end(self) -> None:
        """See `EnvWorkerHandle`."""
        self._child.kill()
