"""SQLite: a file that the processes of one machine share.

Every write transaction takes the write lock at its start (`BEGIN IMMEDIATE`): a deferred one would find out
midway that another process was faster, and could only fail.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event

from backend.errors import ConfigError
from backend.fairness.fair_lock import FairLock
from backend.store.read_cache import refuse_if_cached_only
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, StorageFullError, TinkerGymError

BUSY_TIMEOUT_SECONDS = 15.0
"""How long a writer waits for another process's transaction, which usually takes milliseconds."""

SYNCHRONOUS = "FULL"
"""WAL's default of NORMAL may lose the last commits on power loss; acknowledged writes must survive."""

_UNUSABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR}


class FileLocked:
    """The scheduler's lock where there is one `tinkergym serve`, which has locked the file."""

    def held(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing."""


class SqliteFile:
    """A file, created if it does not exist."""

    cached_seconds: float | None = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path.parent} cannot be created: {error.strerror or error}", field="database_url"
            ) from error
        try:
            # Readable by the owner only, like the -wal and -shm files, which inherit the mode.
            if not path.exists():
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise _file_error(path, error) from error
        # One per reading thread; opening a connection takes longer than most reads.
        self.reader = create_engine(f"sqlite:///{path}", pool_size=40, max_overflow=0)
        event.listen(self.reader, "connect", _configure)
        event.listen(self.reader, "begin", _begin)
        self.writer: Engine = self.reader.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        # Threads of one process queue here, in order; SQLite's own waiting polls and is unfair.
        self.write_turn = FairLock()
        self._lock = threading.Lock()
        self._counting: sqlite3.Connection | None = None
        self._connections = 0

    def commits(self) -> int | None:
        """Return a number that changes whenever a connection commits, or None if the file cannot be read.

        It costs a few microseconds, so a loop can ask it whether reading the database is worth it.
        """
        with self._lock:
            try:
                if self._counting is None:
                    refuse_if_cached_only()
                    # A connection of its own, because SQLite counts only the commits of others for it.
                    self._counting = sqlite3.connect(
                        self._path, isolation_level=None, check_same_thread=False
                    )
                    self._connections += 1
                (version,) = self._counting.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                self._hang_up()
                return None
            # A new connection counts from a different number.
            return int(version) + (self._connections << 40)

    def committed(self) -> None:
        """Do nothing: SQLite counts the commits of all connections."""

    def scheduler_lock(self) -> FileLocked:
        """Return a lock that is always held."""
        return FileLocked()

    def place(self, _connection: Connection) -> str:
        """Return the file."""
        return str(self._path.resolve())

    def typed(self, error: Any) -> TinkerGymError:
        """Return the error for one of the driver."""
        return _typed(self._path, error)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.reader.dispose()
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._counting is not None:
            self._counting.close()
        self._counting = None


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # By default Python begins deferred transactions.
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _typed(path: Path, error: Any) -> TinkerGymError:
    code = getattr(error, "sqlite_errorcode", 0)
    primary = code & 0xFF  # the upper bits give a more exact code
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFullError(
            f"the disk is full; the database {path} cannot grow",
            hint="free some space; no saved data is lost",
        )
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return ServiceUnavailableError(
            f"another process locked the database for {BUSY_TIMEOUT_SECONDS:.0f} s", hint="try again"
        )
    if primary in _UNUSABLE:
        return InternalServiceError(
            f"the database {path} cannot be used: {error}",
            hint="check that its disk is sound and writable, and the owner and mode of its folder",
            code="unusable_file",
        )
    if primary in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return InternalServiceError(
            f"{path} is damaged or not a database: {error}",
            hint="restore it from a backup, or move it away",
            code="not_a_database",
        )
    return InternalServiceError(f"the database refused an operation: {error}")


def _file_error(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the database {path} cannot be opened: {error.strerror or error}",
        hint="choose a writable data_dir",
        field="database_url",
    )
