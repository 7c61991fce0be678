"""What was read, remembered for as long as nothing was committed since.

SQLite says for the price of a few microseconds whether any connection has committed something. So what is
asked for again and again - whose key this is, which pool runs that job - is read once per commit and not once
per request, and is never out of date.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar, cast

Value = TypeVar("Value")

_MOST = 4096
"""Values; then all are forgotten."""


class Remembered:
    """Values by key, forgotten at the next commit of anybody. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        """SQLite's count of commits, as this connection last saw it; None before the first look."""
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, read: Callable[[], Value]) -> Value:
        """Return what `read` returned for this key, if nothing was committed since, else ask it anew.

        Args:
            key: Stands for everything that the value depends on, but for the database.
            read: Reads from committed data only. What it raises is not remembered.
        """
        with self._lock:
            version = self._look()
            if version is None or version != self._version or len(self._values) >= _MOST:
                self._values, self._version = {}, version
            elif key in self._values:
                return cast(Value, self._values[key])
            values = self._values
        value = read()
        with self._lock:
            # If somebody has seen a commit meanwhile, this may be what was there before it.
            if version is not None and values is self._values:
                values[key] = value
        return value

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._hang_up()

    def _look(self) -> int | None:
        """Return the count of commits, or None if it cannot be had: then nothing is remembered."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            self._hang_up()
            return None
        return int(version)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        # Another connection counts from elsewhere.
        self._connection, self._version, self._values = None, None, {}
