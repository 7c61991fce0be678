"""The connection to SQLite: transactions, durability, and translation of its errors.

It is independent of jobs. Every write transaction takes the write lock at its start (`BEGIN IMMEDIATE`): a
deferred one would find out midway that another process was faster, and could only fail.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from backend.errors import ConfigError
from backend.fairness.fair_lock import FairLock
from backend.store.read_cache import ReadCache, refuse_if_cached_only
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, StorageFullError, TinkerGymError

BUSY_TIMEOUT_SECONDS = 15.0
"""How long a writer waits for another process's transaction, which usually takes milliseconds."""

SYNCHRONOUS = "FULL"
"""WAL's default of NORMAL may lose the last commits on power loss; acknowledged writes must survive."""

_UNUSABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR}


class Database:
    """A SQLite file shared by the service's processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Readable by the owner only, like the -wal and -shm files, which inherit the mode.
            if not path.exists():
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise _file_error(path, error) from error
        # One per reading thread; opening a connection takes longer than most reads.
        self._engine = create_engine(f"sqlite:///{path}", pool_size=40, max_overflow=0)
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        self._writer: Engine = self._engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        # Threads of one process queue here, in order; SQLite's own waiting polls and is unfair.
        self._write_lock = FairLock()
        self.read_cache = ReadCache(path)
        """Cache for small values that are read for nearly every request."""

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot; never waits for a writer."""
        refuse_if_cached_only()
        with _translated(self.path), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is durable (synced to disk) when the block ends, or rolled back."""
        refuse_if_cached_only()
        with self._write_lock, _translated(self.path), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()
        self.read_cache.close()


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # By default Python begins deferred transactions.
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _typed(path, error.orig) from error
    except PoolTimeoutError as error:
        raise ServiceUnavailableError(
            "too many requests are waiting for the database", hint="try again"
        ) from error


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
