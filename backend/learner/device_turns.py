"""Who computes on the learner's device, and when.

Lock order: the model's lock, then the device's, then the clock. The model's lock is held while a policy's
weights are in the base model or are being changed; the device's for one micro-batch at a time, so that
several jobs and an engine can share the device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from backend.compute.busy_clock import BusyClock
from backend.compute.device_lock import DeviceLock, computing_with
from backend.fairness.fair_lock import FairLock
from backend.learner.batching import MicroBatch
from backend.learner.worker_threads import Cores, WorkerThreads, whole_device
from backend.processes.memory import give_memory_back

_FEW = 10**7
"""Number of elements that one thread processes in some milliseconds."""


class DeviceTurns:
    """Turns on one device. Thread-safe."""

    def __init__(
        self, device: torch.device, lock: AbstractContextManager[Any] | None, workers: WorkerThreads
    ) -> None:
        """Prepare.

        Args:
            device: The learner's.
            lock: Held while computing; None if nothing else uses the device.
            workers: Those that may compute at the same time; each acquires as many cores of a `DeviceLock` as
                it has threads.
        """
        self._device, self._workers = device, workers
        self._model_lock = FairLock()
        self._lock = threading.Lock() if lock is None else lock
        self._clock = BusyClock()

    @property
    def busy_seconds(self) -> float:
        """Seconds with work in progress, not counting waits for the device."""
        return self._clock.seconds

    def working(self) -> AbstractContextManager[None]:
        """Count work that needs no device, such as cutting a batch."""
        return self._clock.working()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Compute with the whole device."""
        with self._model_lock, self._lock, self._clock.working():
            yield

    @contextmanager
    def own_tensors(self, numbers: int) -> Iterator[None]:
        """Like `whole`, for operations on this many numbers of a policy's own tensors only.

        If they are few, they run next to other computation.
        """
        if isinstance(self._lock, DeviceLock) and self._device.type == "cpu" and numbers <= _FEW:
            # Without the model's lock: calls for one policy are sequential, and no other uses its tensors.
            with computing_with(1), self._clock.working():
                yield
        else:
            with self.whole():
                yield

    @contextmanager
    def together(self, batches: Sequence[MicroBatch]) -> Iterator[Cores]:
        """Like `whole`, for several micro-batches; if each worker can acquire its own cores, return how."""
        lock = self._lock
        if not isinstance(lock, DeviceLock) or not self._workers.share(batches):
            with self.whole():
                yield whole_device
            return

        @contextmanager
        def cores(count: int) -> Iterator[None]:
            with lock.cores(count), self._clock.working():
                yield

        with self._model_lock:
            yield cores

    def rest(self) -> None:
        """Free the memory left by earlier calls."""
        give_memory_back()
        if self._device.type == "cuda":
            with self._lock:  # while the engine records a step, nothing may be freed
                torch.cuda.empty_cache()
