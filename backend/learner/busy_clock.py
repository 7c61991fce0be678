"""How long something was at work, however many threads worked at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyClock:
    """Runs while at least one thread is `working`. Thread-safe."""

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
        """Count the block."""
        with self._guard:
            if not self._working:
                self._since = time.perf_counter()
            self._working += 1
        try:
            yield
        finally:
            with self._guard:
                self._working -= 1
                if not self._working:
                    self._seconds += time.perf_counter() - self._since
