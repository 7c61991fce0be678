"""The connection to the database: transactions, durability, and one kind of error for all databases.

It is independent of jobs. `sqlite_file.py` and `postgres.py` know the two databases; all statements of the
store are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from backend.store.place import database_file
from backend.store.postgres import Postgres
from backend.store.read_cache import ReadCache, refuse_if_cached_only
from backend.store.sqlite_file import SqliteFile
from tinkergym.errors import ServiceUnavailableError, TinkerGymError


class Backend(Protocol):
    """What differs between the databases."""

    name: str
    """The database as errors name it."""

    @property
    def reader(self) -> Engine:
        """Begins transactions that only read."""

    @property
    def writer(self) -> Engine:
        """Begins transactions that write."""

    @property
    def write_turn(self) -> AbstractContextManager[object]:
        """Held by a thread during a write transaction."""

    @property
    def cached_seconds(self) -> float | None:
        """How long a cached value may be used if no commit is noticed; None if every commit is."""

    def commits(self) -> int | None:
        """Return a number that changes with every commit; None if that is unknown now."""

    def committed(self) -> None:
        """Take note of this process's own commit."""

    def scheduler_lock(self) -> SchedulerLock:
        """Return this process's claim to be the only active scheduler."""

    def place(self, connection: Connection) -> str:
        """Return where the database is: the same for every URL that leads to it, and another for a copy."""

    def typed(self, error: Any) -> TinkerGymError:
        """Return the error for one of the driver."""

    def close(self) -> None:
        """Close all connections that are not in use."""


class SchedulerLock(Protocol):
    """The right to be the service's active scheduler."""

    def held(self) -> bool:
        """Take the lock if it is free; return whether this process has it now.

        Ask before every tick. False means to stop at once: another scheduler may be active already.
        """

    def close(self) -> None:
        """Give it back."""


class Database:
    """A database shared by the service's processes, and by the threads of this one."""

    def __init__(self, url: str, part: str = "") -> None:
        """Prepare to connect.

        Args:
            url: The database.
            part: The part of the service that opens it.

        Raises:
            ConfigError: The URL or the file cannot be used.
            MissingExtraError: Its driver is not installed.
        """
        file = database_file(url)
        self.backend: Backend = Postgres(url, part) if file is None else SqliteFile(file)
        self.read_cache = ReadCache(self.backend.commits, self.backend.cached_seconds)
        """Cache for small values that are read for nearly every request."""

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot; never waits for a writer."""
        refuse_if_cached_only()
        with self._translated(), self.backend.reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is durable (synced to disk) when the block ends, or rolled back.

        What `job_row` reads in it cannot change before its end.
        """
        refuse_if_cached_only()
        with self.backend.write_turn, self._translated(), self.backend.writer.begin() as connection:
            yield connection
        # After the commit: a reader before it would cache the old value again.
        self.read_cache.clear()
        self.backend.committed()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self.backend.typed(error.orig) from error
        except PoolTimeoutError as error:
            raise ServiceUnavailableError(
                "too many requests are waiting for the database", hint="try again"
            ) from error

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.backend.close()


def write_row(
    connection: Connection, table: Table, keys: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Insert a row, or give the row with these keys the new values."""
    insert = _insert(connection, table).values(**keys, **values)
    connection.execute(insert.on_conflict_do_update(index_elements=list(keys), set_=dict(values)))


def add_row(connection: Connection, table: Table, keys: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert a row unless there is one with these keys."""
    insert = _insert(connection, table).values(**keys, **values)
    connection.execute(insert.on_conflict_do_nothing(index_elements=list(keys)))


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
