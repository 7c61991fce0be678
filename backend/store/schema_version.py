"""The schema's revision: a new database gets all tables, an older one is upgraded, any other is refused.

`migrations/versions` has the changes since the first release. Alembic is loaded only to apply one.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, select, text

from backend.errors import ConfigError
from backend.store.database import Database
from backend.store.tables import alembic_version, metadata, schema_version

HEAD = "0019"
"""The newest revision."""

_FIRST = "0011"
"""The first revision: the number of the last schema before revisions."""
_REFUSES_OLDER = 12
"""Versions of tinkergym that know no revisions refuse this number."""


def require_current_schema(database: Database, *, upgrade: bool = False) -> None:
    """Create the tables of a new database; check the revision of an existing one.

    An older one is upgraded only if `upgrade` says that no process uses it.

    Raises:
        ConfigError: The schema is older and not upgraded, newer, or not tinkergym's.
    """
    with database.read() as connection:
        found = _revision(connection)
    if found == HEAD:
        return
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(_FIRST)})
        found = _revision(connection)  # another process may have been first
        if found is None:
            metadata.create_all(connection)
            connection.execute(schema_version.insert().values(version=_REFUSES_OLDER))
            connection.execute(alembic_version.insert().values(version_num=HEAD))
        elif found != HEAD:
            if not _FIRST <= found < HEAD:
                hint = "use the tinkergym version that wrote it, or another database"
            elif not upgrade:
                hint = "stop all of the service's processes and run `tinkergym migrate`"
                if connection.dialect.name == "sqlite":
                    hint += ", or start the service once"
            else:
                _upgrade(connection, found)
                return
            raise ConfigError(
                f"the database {database.backend.name} has schema {found}, but this tinkergym needs {HEAD}",
                hint=hint,
                field="database_url",
            )


def _revision(connection: Connection) -> str | None:
    """Return the revision of a database; None if it is empty."""
    tables = inspect(connection)
    if tables.has_table(alembic_version.name):
        return str(connection.scalar(select(alembic_version.c.version_num)))
    if not tables.has_table(schema_version.name):
        return None
    version = connection.scalar(select(schema_version.c.version))
    return f"{version:04}"


def _upgrade(connection: Connection, found: str) -> None:
    """Apply the later revisions in this transaction."""
    from alembic import command, config

    settings = config.Config(attributes={"connection": connection})
    settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    if not inspect(connection).has_table(alembic_version.name):
        command.stamp(settings, found)
    command.upgrade(settings, HEAD)
