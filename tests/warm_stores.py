"""Stores of a test process begin as copies of one database, and no statement is compiled twice.

To create the tables, and to compile the statements of each store anew, took half the time of a test of the
gateway.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from backend.store import postgres, sqlite_file
from backend.store.store import Store

with tempfile.TemporaryDirectory() as _folder:
    _file = Path(_folder) / "new.sqlite3"
    Store.open(f"sqlite:///{_file}").close()
    _NEW_DATABASE = _file.read_bytes()

_begin = sqlite_file.SqliteFile.__init__
_copying = threading.Lock()
_compiled: dict[str, Any] = {}
"""What the engines of each kind of database have compiled."""


def _begin_as_a_copy(file: sqlite_file.SqliteFile, path: Path) -> None:
    # What goes wrong here goes wrong again below, where it is part of what is tested.
    with _copying, contextlib.suppress(OSError):
        if path.parent.is_dir() and not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as new:
                new.write(_NEW_DATABASE)
    _begin(file, path)


def _create_engine(*arguments: Any, **settings: Any) -> Engine:
    engine = create_engine(*arguments, **settings)
    engine._compiled_cache = _compiled.setdefault(engine.dialect.name, engine._compiled_cache)
    return engine


def use_warm_stores() -> None:
    """Let all stores of this process begin so."""
    sqlite_file.SqliteFile.__init__ = _begin_as_a_copy
    for module in (sqlite_file, postgres):
        module.create_engine = _create_engine
    for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):  # part of the name of what is compiled
        dialect.__eq__ = lambda one, other: type(one) is type(other)
        dialect.__hash__ = lambda one: hash(type(one))
