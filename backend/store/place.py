"""Where a service's database is: all that the rest of the service needs to know about it."""

from __future__ import annotations

from pathlib import Path

from backend.errors import ConfigError

_HINT = "use sqlite:////absolute/path/to/tinkergym.sqlite3 or postgresql://user@host/database"

DEFAULT_FILE = "tinkergym.sqlite3"
"""The file's name in the data folder of a service that names no database."""


def default_url(data_dir: Path) -> str:
    """Return the URL of the database of a service that names none."""
    return url_of_file(data_dir / DEFAULT_FILE)


def url_of_file(file: Path) -> str:
    """Return the URL of a database in a file."""
    return f"sqlite:///{file}"


def database_file(url: str) -> Path | None:
    """Return the file behind a database URL; None if a PostgreSQL server has the database.

    Raises:
        ConfigError: It is another kind of database, or one in memory, which the service's processes could not
            share.
    """
    # Every process reads the settings, and not every one opens the database.
    import sqlalchemy

    try:
        parsed = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # Not repeated in the error: it may contain a password.
        raise ConfigError("this is not a database URL", hint=_HINT, field="database_url") from None
    if parsed.drivername in {"postgresql", "postgresql+psycopg"}:
        if not parsed.database:
            raise ConfigError("the URL names no database", hint=_HINT, field="database_url")
        return None
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(
            f"{parsed.drivername!r} is not supported; only sqlite and postgresql are",
            hint=_HINT,
            field="database_url",
        )
    if not parsed.database or parsed.database == ":memory:":
        raise ConfigError("the service's processes need a shared file", hint=_HINT, field="database_url")
    return Path(parsed.database)
