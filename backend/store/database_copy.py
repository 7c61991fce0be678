"""A consistent copy of the database in one file, and back: SQLite's backup API, or pg_dump and pg_restore."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL, inspect, make_url, text

from backend.errors import ConfigError
from backend.store.database import Database
from backend.store.place import database_file, url_of_file
from backend.store.policies import checkpoint_files


def dump(url: str, target: Path) -> set[str]:
    """Write a consistent copy of the database into a new file, whether or not a service uses it.

    Returns:
        The keys of all files of the checkpoints that the copy names, among the files of all jobs.

    Raises:
        ConfigError: There is no database, or it cannot be read.
    """
    path = database_file(url)
    if path is not None:
        copy_file(path, target)
        url = url_of_file(target)
    with closing(Database(url)) as database, database.read() as connection:
        if path is None:
            # The program copies what this transaction sees, which lasts until the copy is complete.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            seen = connection.scalar(text("SELECT pg_export_snapshot()"))
            _run(url, "pg_dump", "--format=custom", f"--snapshot={seen}", f"--file={target}")
        return checkpoint_files(connection)


def copy_file(path: Path, target: Path) -> None:
    """Write a consistent copy of a SQLite database into a new file.

    Raises:
        ConfigError: There is no database, or it cannot be read.
    """
    if not path.exists():
        raise ConfigError(
            f"there is no database {path}", hint="name the service's data_dir", field="database_url"
        )
    # Made here, because SQLite's own file would be readable by others: it holds secrets and hashes of keys.
    os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        before = _state(path)
        _copy(path, target, changes=before.has_log)
        if not before.has_log and _state(path) != before:  # A service began to use it meanwhile.
            _copy(path, target, changes=True)
    except sqlite3.Error as error:
        raise ConfigError(f"the database {path} cannot be read: {error}", field="database_url") from error


class _State(NamedTuple):
    """What tells whether a process uses a SQLite database."""

    has_log: bool
    bytes: int
    changed_ns: int


def _state(path: Path) -> _State:
    found = path.stat()
    return _State(os.path.lexists(f"{path}-wal"), found.st_size, found.st_mtime_ns)


def _copy(path: Path, target: Path, *, changes: bool) -> None:
    """Copy a SQLite database so that neither it nor what is next to it changes.

    Usually the last to close it moves a log, which a killed service has left, into the database. One that no
    process changes can also be on a disk that cannot be written.
    """
    source_uri = f"{path.absolute().as_uri()}?mode=ro{'' if changes else '&immutable=1'}"
    with closing(sqlite3.connect(source_uri, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def require_none(url: str) -> None:
    """Check that there is no database yet.

    Raises:
        ConfigError: There is one, or what one left.
    """
    path = database_file(url)
    if path is None:
        with closing(Database(url)) as database, database.read() as connection:
            found = inspect(connection).get_table_names()[:1]
    else:
        # Also without its database: SQLite would apply a log that is left to the restored one.
        found = [name for end in ("", "-wal", "-shm") if os.path.lexists(name := f"{path}{end}")]
    if found:
        raise ConfigError(
            f"{found[0]} is there already", hint="move it away, or choose another place", field="database_url"
        )


def restore(source: Path, url: str) -> None:
    """Make a database from a copy.

    Raises:
        ConfigError: There is a database already, or the copy cannot be read.
    """
    path = database_file(url)
    if path is None:
        _run(url, "pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", str(source))
        return
    require_none(url)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.restoring")
    draft.unlink(missing_ok=True)
    copy_file(source, draft)
    # Only now does it have its name: a restore that is killed leaves nothing that looks like a database.
    draft.rename(path)


def program_access(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL as PostgreSQL's own programs read it, without the password, and their environment."""
    parts = make_url(url).set(drivername="postgresql")
    password = parts.password or parts.query.get("password")
    query = parts.difference_update_query(["password"]).query
    plain = URL.create("postgresql", parts.username, None, parts.host, parts.port, parts.database, query)
    # In the environment, because every user of the machine can read a program's arguments.
    secret = {"PGPASSWORD": password} if isinstance(password, str) else {}
    return plain.render_as_string(), {**os.environ, **secret}


def _run(url: str, program: str, *arguments: str) -> None:
    plain, environment = program_access(url)
    command = [program, f"--dbname={plain}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise ConfigError(
            f"{program} is not installed", hint="install PostgreSQL's client programs", field="database_url"
        ) from None
    if done.returncode:
        raise ConfigError(f"{program} failed: {done.stderr.strip()[-500:]}", field="database_url")
