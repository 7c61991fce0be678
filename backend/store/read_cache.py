"""A cache of reads, valid until the next commit.

SQLite reports within microseconds whether any connection has committed. Frequent reads, such as a key's
tenant or a job's pool, therefore happen once per commit instead of once per request, and are never stale.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        """SQLite's commit count as last seen by this connection; None before the first read."""
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, read: Callable[[], Value]) -> Value:
        """Return the cached result of `read` for this key if nothing was committed since, else call it.

        Args:
            key: Identifies everything the value depends on except the database.
            read: Reads only committed data. Exceptions are not cached.
        """
        with self._lock:
            version = self._commits()
            if version is None or version != self._version or len(self._values) >= _MOST:
                self._values, self._version = {}, version
            elif key in self._values:
                return cast(Value, self._values[key])
            values = self._values
        refuse_if_cached_only()
        value = read()
        with self._lock:
            # If another thread has seen a commit meanwhile, this may be the value before it.
            if version is not None and values is self._values:
                values[key] = value
        return value

    def commits(self) -> int | None:
        """Return a number that changes whenever a connection commits, or None if the database is unavailable.

        It costs a few microseconds, so a loop can ask it whether reading the database is worth it.
        """
        with self._lock:
            return self._commits()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._hang_up()

    def _commits(self) -> int | None:
        try:
            if self._connection is None:
                refuse_if_cached_only()
                self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            self._hang_up()
            return None
        return int(version)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        # A new connection counts from a different number.
        self._connection, self._version, self._values = None, None, {}
