"""A cache of reads, valid until the next commit.

A database reports whether any connection has committed. Frequent reads, such as a key's tenant or a job's
pool, therefore happen once per commit instead of once per request. With SQLite they are never stale; with
PostgreSQL, whose notifications take a moment and may be lost, by at most half a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

Value = TypeVar("Value")

_MOST = 4096
"""Values; beyond this the cache is emptied."""

_cached_only: ContextVar[bool] = ContextVar("cached_only", default=False)


class NotCachedError(Exception):
    """A value would have to be read from the disk."""


@contextmanager
def cached_only() -> Iterator[None]:
    """Let every use of the database in this block raise `NotCachedError` instead of waiting for the disk."""
    before = _cached_only.set(True)
    try:
        yield
    finally:
        _cached_only.reset(before)


def refuse_if_cached_only() -> None:
    """Raise `NotCachedError` within `cached_only`."""
    if _cached_only.get():
        raise NotCachedError


class ReadCache:
    """Values by key, dropped at the next commit of any connection. Thread-safe."""

    def __init__(
        self,
        commits: Callable[[], int | None],
        most_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            commits: Returns a number that changes with every commit; None if that is unknown now.
            most_seconds: How long values are used if `commits` may be late or unknown; None if it is
                reliable, and then nothing is cached while it is unknown.
            clock: Monotonic seconds.
        """
        self._commits, self._most_seconds, self._clock = commits, most_seconds, clock
        self._lock = threading.Lock()
        self._version: int | None = None
        self._values: dict[Hashable, Any] = {}
        self._since = 0.0

    def get(self, key: Hashable, read: Callable[[], Value]) -> Value:
        """Return the cached result of `read` for this key if nothing was committed since, else call it.

        Args:
            key: Identifies everything the value depends on except the database.
            read: Reads only committed data. Exceptions are not cached.
        """
        with self._lock:
            version = self._commits()
            if version != self._version or self._is_old(version) or len(self._values) >= _MOST:
                self._values, self._version, self._since = {}, version, self._clock()
            elif key in self._values:
                return cast(Value, self._values[key])
            values = self._values
        refuse_if_cached_only()
        value = read()
        with self._lock:
            # If another thread has seen a commit meanwhile, this may be the value before it.
            if values is self._values:
                values[key] = value
        return value

    def clear(self) -> None:
        """Drop all values, after a commit of this process."""
        with self._lock:
            self._values = {}

    def _is_old(self, version: int | None) -> bool:
        if self._most_seconds is None:
            return version is None
        return self._clock() - self._since > self._most_seconds
