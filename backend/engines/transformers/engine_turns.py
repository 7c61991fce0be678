"""The device as the engine's thread uses it, in turns with the learner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from backend.compute.device_lock import DeviceLock, KeptCore


class EngineTurns:
    """A device that one thread uses; the time it spent waiting is counted apart."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._core = KeptCore(lock) if isinstance(lock, DeviceLock) else None
        self.waited_seconds = 0.0
        self.patient = False
        """Whether to wait for all cores instead of using the free ones: then the result does not depend on
        other threads, not even in the last bit."""

    @contextmanager
    def taken(self, *, alone: bool, shares: bool) -> Iterator[None]:
        """Acquire it; a thread that computes alone acquires one core of a CPU.

        Args:
            alone: Whether it does.
            shares: Whether that core is shared equally with another thread that waits for one.
        """
        if self._core is not None:
            self._core.shares = shares
        if self._core is None:
            place = self._lock
        elif alone:
            place = self._core
        else:
            place = self._core.with_others(wait=self.patient)
        begin = time.perf_counter()
        with place:
            self.waited_seconds += time.perf_counter() - begin
            yield

    def rest(self) -> None:
        """Release everything: there is no work."""
        if self._core is not None:
            self._core.give_back()
