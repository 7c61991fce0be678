"""PostgreSQL: a server that processes on several machines share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from threading import Lock
from typing import Any

from sqlalchemy import URL, Connection, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from backend.store.postgres_news import PostgresNews
from tinkergym.basics.extras import import_extra
from tinkergym.errors import (
    InternalServiceError,
    ServiceUnavailableError,
    StorageFullError,
    TinkerGymError,
)

CACHED_SECONDS = 0.5
"""How long a cached value is used when no notification comes: a revoked key is refused within a second."""

_CONNECTIONS = 10
_CONNECTIONS_OF_GATEWAY = 20
"""The server allows 100 by default, for all processes together."""

_LOCK_KEY = 0x74696E6B657267
"""Of the advisory lock; another database of the same server has its own locks."""

# A client that is gone, or whose network is, holds row locks and the scheduler's lock for about ten seconds.
_SESSION = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # Keepalives are not sent while an answer is on its way to a client that is gone.
    "tcp_user_timeout": "10s",
    "lock_timeout": "15s",
    "idle_in_transaction_session_timeout": "60s",
}
_SOCKET = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_PLACE = text(
    "SELECT system_identifier || '/' || oid FROM pg_control_system(), pg_database"
    " WHERE datname = current_database()"
)

_UNREACHABLE = {"57P01", "57P02", "57P03"}
"""The server is stopping or starting."""
_REPEATABLE = {"40001", "40P01", "55P03", "57014", "25006", "25P03"}


class DuplicateRowError(InternalServiceError):
    """Another process has just inserted a row with the same key: what was read before is out of date."""


class DatabaseUnreachableError(ServiceUnavailableError):
    """No database answers, or it refuses the connection."""


def lacks_rights(error: TinkerGymError) -> bool:
    """Whether an error that `typed` made says that the database's user may not do what was asked."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) == "42501"


class Postgres:
    """A server's database. Its schema is that of SQLite; see `tables`."""

    cached_seconds: float | None = CACHED_SECONDS

    def __init__(self, url: str, part: str = "") -> None:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
        self.name = parsed.set(drivername="postgresql").render_as_string(hide_password=True)
        arguments = _arguments(parsed, part)
        connections = _CONNECTIONS_OF_GATEWAY if part == "gateway" else _CONNECTIONS
        import_extra("psycopg", "a PostgreSQL database needs psycopg", extra="postgres")
        engine = create_engine(
            parsed,
            pool_size=connections,
            max_overflow=0,
            # Asked before use: a server that was restarted has closed the connections that were idle.
            pool_pre_ping=True,
            connect_args=arguments,
        )
        event.listen(engine, "before_cursor_execute", _without_nul, retval=True)
        # Several statements see one state, as in SQLite, and no row is locked.
        self.reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self.writer = engine
        self.write_turn = nullcontext()
        self._engine = engine
        # For connections that are held for as long as the process runs.
        self._alone = create_engine(
            parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments
        )
        self._news = PostgresNews(self._alone)

    def commits(self) -> int | None:
        """Return a number that changes with every commit, within 0.1 s; None without notifications."""
        return self._news.count()

    def committed(self) -> None:
        """Tell other processes, soon and once for several commits."""
        self._news.committed()

    def scheduler_lock(self) -> AdvisoryLock:
        """Return this process's claim to be the only active scheduler."""
        return AdvisoryLock(self._alone.connect)

    def place(self, connection: Connection) -> str:
        """Return the numbers of the server and of its database."""
        return str(connection.scalar(_PLACE))

    def typed(self, error: Any) -> TinkerGymError:
        """Return the error for one of the driver."""
        state, said = getattr(error, "sqlstate", None), " ".join(str(error).split())
        if state is None or state.startswith("08") or state in _UNREACHABLE:
            return DatabaseUnreachableError(
                f"the database {self.name} cannot be reached: {said}",
                hint="check that its server runs, and user, password and name in database_url",
            )
        if state == "53100":
            return StorageFullError(
                "the disk of the database server is full", hint="free some space; no saved data is lost"
            )
        if state == "53300":
            return ServiceUnavailableError(
                "the database server has no connection left", hint="raise its max_connections"
            )
        if state in _REPEATABLE:
            return ServiceUnavailableError(f"the database is busy: {said}", hint="try again")
        if state == "23505":
            return DuplicateRowError(f"a row exists already: {said}")
        return InternalServiceError(f"the database refused an operation: {said}")

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._news.close()
        self._engine.dispose()


class AdvisoryLock:
    """A lock of the server that one process holds until its connection ends, however it ends. Thread-safe."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._connection: Connection | None = None
        self._has = False

    def held(self) -> bool:
        """Take the lock if it is free; return whether this process has it now."""
        with self._lock:
            try:
                self._connection = self._connection or self._connect()
                if self._has:
                    self._connection.execute(text("SELECT 1"))  # The lock is lost with its connection.
                else:
                    take = text("SELECT pg_try_advisory_lock(:key)")
                    self._has = bool(self._connection.scalar(take, {"key": _LOCK_KEY}))
            except SQLAlchemyError:
                self._hang_up()
            return self._has

    def close(self) -> None:
        """Give it back."""
        with self._lock:
            if self._has and self._connection is not None:
                with suppress(SQLAlchemyError):  # The server takes a moment to notice the connection's end.
                    self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            # Otherwise closing would send a rollback first, over a connection that may not answer.
            self._connection.invalidate()
            self._connection.close()
        self._connection, self._has = None, False


def _arguments(url: URL, part: str) -> dict[str, str]:
    """Return what each connection is opened with; what the URL says comes first."""
    session = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    ours = {"application_name": f"tinkergym {part}".strip(), "options": session, **_SOCKET}
    return {name: value for name, value in ours.items() if name not in url.query}


def _without_nul(
    _connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
) -> tuple[str, Any]:
    """Replace NUL, which PostgreSQL has no place for in a text, as in an exception's message."""
    rows = parameters if many else [parameters]
    if any("\0" in value for row in rows for value in row.values() if isinstance(value, str)):
        rows = [
            {
                name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
                for name, value in row.items()
            }
            for row in rows
        ]
    return statement, rows if many else rows[0]
