"""How long something was busy, regardless of how many threads or requests it served at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyClock:
    """Runs while at least one piece of work is in progress. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._working = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far; grows monotonically."""
        with self._guard:
            now = time.perf_counter() - self._since if self._working else 0.0
            return self._seconds + now

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as work in progress."""
        with self._guard:
            self._set(self._working + 1)
        try:
            yield
        finally:
            with self._guard:
                self._set(self._working - 1)

    def count(self, working: int) -> None:
        """Set the number of pieces of work in progress, if no block encloses them."""
        with self._guard:
            self._set(working)

    def _set(self, working: int) -> None:
        now = time.perf_counter()
        if working and not self._working:
            self._since = now
        elif self._working and not working:
            self._seconds += now - self._since
        self._working = working
