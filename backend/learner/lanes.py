"""Lanes: threads that compute micro-batches side by side, each with its own share of the cores.

On a CPU two threads with a micro-batch each are done sooner than two that divide every operation of one: the
latter wait for each other some thousand times per batch, and whatever else the machine does delays both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from backend.device_lock import computing_with

_MOST_LANES = 4
"""More would wait for Python's lock."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lanes:
    """A fixed number of lanes; the calling thread is the first."""

    def __init__(self, threads: int) -> None:
        """Divide threads among lanes.

        Args:
            threads: Cores to compute with; 1 makes one lane, which leaves threads as they are.
        """
        self.count = min(threads, _MOST_LANES)
        self._threads_each = threads // self.count
        self._others = ThreadPoolExecutor(self.count - 1, "lane") if self.count > 1 else None

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do at most as many pieces of work as there are lanes, at the same time; results in input order.

        An error of any piece is raised after all have ended, that of the first if there are several.
        """
        if self._others is None or len(items) < 2:
            return [work(item) for item in items]
        first, *others = items
        futures = [self._others.submit(self._in_lane, work, item) for item in others]
        try:
            own = self._in_lane(work, first)
        finally:
            # Whatever happened here: nothing of this call may compute any more when it is over.
            for future in futures:
                future.exception()
        return [own, *(future.result() for future in futures)]

    def _in_lane(self, work: Callable[[Item], Result], item: Item) -> Result:
        with computing_with(self._threads_each):
            return work(item)
