"""Worker threads compute micro-batches at the same time, each with its share of the cores.

On a CPU two threads with one micro-batch each finish sooner than two that divide every operation of one: the
latter wait for each other some thousand times per batch, and any other load delays both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from backend.compute.device_lock import can_divide_threads, computing_with

_MOST_WORKERS = 4
"""More would wait for the GIL."""

Item = TypeVar("Item")
Result = TypeVar("Result")


Cores = Callable[[int], AbstractContextManager[None]]
"""Acquires this many cores of a device."""


def whole_device(_: int) -> AbstractContextManager[None]:
    """Acquire nothing: the caller already has the whole device."""
    return nullcontext()


class WorkerThreads:
    """A fixed number of workers; the calling thread is the first."""

    def __init__(self, threads: int) -> None:
        """Divide threads among workers.

        Args:
            threads: Total number of threads; 1 means one worker and unchanged threads, as on a machine where
                they cannot be divided.
        """
        self.count = min(threads, _MOST_WORKERS) if can_divide_threads() else 1
        self._threads = [
            threads // self.count + (worker < threads % self.count) for worker in range(self.count)
        ]
        self._others = ThreadPoolExecutor(self.count - 1, "learner") if self.count > 1 else None

    def share(self, items: Sequence[Item]) -> bool:
        """Return whether `run` would use several workers."""
        return self._others is not None and len(items) > 1

    def run(
        self, work: Callable[[Item], Result], items: Sequence[Item], cores: Cores = whole_device
    ) -> list[Result]:
        """Run at most as many pieces of work as there are workers, at the same time; results in input order.

        An error is raised after all have ended; with several errors, that of the first piece. A single piece
        runs in the calling thread with all its threads.

        Args:
            work: The function.
            items: Its arguments.
            cores: Acquires a worker's cores while it works, if there are several workers.
        """
        if self._others is None or not self.share(items):
            return [work(item) for item in items]
        first, *others = items
        futures = [
            self._others.submit(self._in_worker, worker, work, item, cores)
            for worker, item in enumerate(others, start=1)
        ]
        try:
            own = self._in_worker(0, work, first, cores)
        finally:
            # Even after an error nothing of this call may continue to run.
            wait(futures)
        return [own, *(future.result() for future in futures)]

    def _in_worker(self, worker: int, work: Callable[[Item], Result], item: Item, cores: Cores) -> Result:
        with cores(self._threads[worker]), computing_with(self._threads[worker]):
            return work(item)
