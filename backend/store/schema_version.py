"""The schema version: a new database gets all tables; a database with another version is refused."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, select

from backend.errors import ConfigError
from backend.store.database import Database
from backend.store.tables import metadata, schema_version

CURRENT_VERSION = 11
"""Grows with every change of the tables or of what they store."""


def require_current_schema(database: Database) -> None:
    """Create the tables of a new database; check the version of an existing one.

    Raises:
        ConfigError: The database has a different schema version.
    """
    with database.read() as connection:
        found = _version(connection)
    if found is None:
        with database.write() as connection:
            found = _version(connection)  # another process may have been first
            if found is None:
                metadata.create_all(connection)
                connection.execute(schema_version.insert().values(version=CURRENT_VERSION))
                return
    if found != CURRENT_VERSION:
        raise ConfigError(
            f"the database {database.path} has schema version {found}, but this tinkergym needs "
            f"{CURRENT_VERSION}",
            hint="use the tinkergym version that created the database, or another data_dir",
            field="database_url",
        )


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema_version.name):
        return None
    version: int = connection.execute(select(schema_version.c.version)).scalar_one()
    return version
