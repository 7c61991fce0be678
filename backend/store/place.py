"""Where a service's database is: all that the rest of the service needs to know about it."""

from __future__ import annotations

from pathlib import Path

from backend.errors import ConfigError


def default_url(data_dir: Path) -> str:
    """Return the URL of the database of a service that names none."""
    return f"sqlite:///{data_dir / 'tinkergym.sqlite3'}"


def database_file(url: str) -> Path:
    """Return the file behind a database URL.

    Raises:
        ConfigError: It is another database, or one in memory, which the service's processes could not share.
    """
    # Every process reads the settings, and not every one opens the database.
    import sqlalchemy

    hint = "use sqlite:////absolute/path/to/tinkergym.sqlite3"
    try:
        parsed = sqlalchemy.make_url(url)
    except sqlalchemy.exc.ArgumentError as error:
        raise ConfigError(f"{url!r} is not a database URL", hint=hint, field="database_url") from error
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(
            f"{parsed.get_backend_name()!r} is not supported; only sqlite is", hint=hint, field="database_url"
        )
    if not parsed.database or parsed.database == ":memory:":
        raise ConfigError("the service's processes need a shared file", hint=hint, field="database_url")
    return Path(parsed.database)
