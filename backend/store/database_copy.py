"""A consistent copy of the database in one file, and back: SQLite's backup API, or pg_dump and pg_restore."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from backend.errors import ConfigError
from backend.store.place import database_file


def dump(url: str, target: Path) -> None:
    """Write a consistent copy of the database into a new file, whether or not a service uses it.

    Raises:
        ConfigError: There is no database, or it cannot be read.
    """
    path = database_file(url)
    if path is None:
        _run("pg_dump", "--format=custom", f"--file={target}", f"--dbname={_plain(url)}")
        return
    if not path.exists():
        raise ConfigError(
            f"there is no database {path}", hint="name the service's data_dir", field="database_url"
        )
    os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        raise ConfigError(f"the database {path} cannot be read: {error}", field="database_url") from error


def restore(source: Path, url: str) -> None:
    """Make a database from a copy.

    Raises:
        ConfigError: There is a database already, or the copy cannot be read.
    """
    path = database_file(url)
    if path is None:
        _run(
            "pg_restore",
            "--single-transaction",
            "--exit-on-error",
            "--no-owner",
            f"--dbname={_plain(url)}",
            str(source),
        )
        return
    if path.exists():
        raise ConfigError(
            f"{path} is there already", hint="move it away, or choose another data_dir", field="database_url"
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.restoring")
    draft.unlink(missing_ok=True)
    dump(f"sqlite:///{source}", draft)
    draft.rename(path)


def _plain(url: str) -> str:
    """Return a URL as PostgreSQL's own programs read it."""
    return "postgresql" + url[url.index("://") :]


def _run(program: str, *arguments: str) -> None:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(
            f"{program} is not installed", hint="install PostgreSQL's client programs", field="database_url"
        ) from None
    if done.returncode:
        raise ConfigError(f"{program} failed: {done.stderr.strip()[-500:]}", field="database_url")
