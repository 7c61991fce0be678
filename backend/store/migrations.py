"""The schema's versions: an old database is brought forward when it is opened, a newer one is refused.

A migration is a list of SQL statements from version n to n + 1. All that are missing run in one transaction,
so two processes that open the same old file do not disturb each other and a crash leaves the old version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, inspect, select, update

from backend.errors import ConfigError
from backend.store.database import Database
from backend.store.tables import metadata, schema_version

CURRENT_VERSION = 4

MIGRATIONS: Mapping[int, Sequence[str]] = {
    1: ["ALTER TABLE jobs ADD COLUMN client_packs TEXT NOT NULL DEFAULT '[]'"],
    2: [
        "CREATE TABLE IF NOT EXISTS refused_pools "
        "(model VARCHAR NOT NULL PRIMARY KEY, error TEXT NOT NULL, refused_at FLOAT NOT NULL)"
    ],
    3: ["ALTER TABLE jobs ADD COLUMN request_sha256 VARCHAR"],
}
"""From version -> statements that lead to the next one."""


def migrate(
    database: Database,
    *,
    migrations: Mapping[int, Sequence[str]] = MIGRATIONS,
    current_version: int = CURRENT_VERSION,
) -> None:
    """Bring the database to `current_version`; a new file gets all tables at once.

    Raises:
        ConfigError: The database was written by a newer tinkergym.
    """
    with database.read() as connection:
        found = _version(connection)
    if found == current_version:  # the usual start: no write lock taken
        return
    with database.write() as connection:
        found = _version(connection)
        if found is None:
            metadata.create_all(connection)
            connection.execute(schema_version.insert().values(version=current_version))
            return
        if found > current_version:
            raise ConfigError(
                f"the database {database.path} has schema {found}, this tinkergym knows {current_version}",
                hint="update tinkergym, or choose another data_dir",
                field="database_url",
            )
        for version in range(found, current_version):
            for statement in migrations[version]:
                connection.exec_driver_sql(statement)
        connection.execute(update(schema_version).values(version=current_version))


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema_version.name):
        return None
    version: int = connection.execute(select(schema_version.c.version)).scalar_one()
    return version
