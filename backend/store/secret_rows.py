"""Secrets of jobs: tokens of environment servers, keys of judges and of external models; one of the service.

A job has the name of a secret, never the secret itself.
"""

from __future__ import annotations

import hashlib
import secrets as random_names
from collections.abc import Callable, Collection

from sqlalchemy import Connection, delete, exists, select, update

from backend.store.database import Database, add_row
from backend.store.tables import secrets

_GRACE_SECONDS = 120.0
"""A secret is stored before its job; until then no job uses it."""
_NEVER_OLD = 1e18
"""Later than any time: such a secret is not deleted when no job uses it."""


class SecretRows:
    """The store's methods for secrets."""

    _db: Database
    _clock: Callable[[], float]

    def secret(self, name: str) -> str | None:
        """Return a secret by its name; None if there is none."""
        with self._db.read() as connection:
            found: str | None = connection.scalar(select(secrets.c.value).where(secrets.c.name == name))
            return found

    def adopt_secret(self, name: str, value: str) -> None:
        """Store a secret that already has a name, unless it is there."""
        row = {"sha256": _digest("", name), "value": value, "stored_at": self._clock()}
        with self._db.write() as connection:
            add_row(connection, secrets, {"name": name}, row)

    def keep_secret(self, name: str, value: str) -> str:
        """Store a secret of the service itself unless there is one of that name; return the stored one."""
        row = {"sha256": _digest("", name), "value": value, "stored_at": _NEVER_OLD}
        with self._db.write() as connection:
            add_row(connection, secrets, {"name": name}, row)
            return str(connection.scalar(select(secrets.c.value).where(secrets.c.name == name)))

    def has_old_secrets(self, now: float) -> bool:
        """Whether there are secrets that may be deleted if no job uses them."""
        with self._db.read() as connection:
            return bool(connection.scalar(select(exists().where(secrets.c.stored_at < now - _GRACE_SECONDS))))

    def delete_secrets(self, in_use: Collection[str], now: float) -> int:
        """Delete the secrets with other names, except recent ones; return how many."""
        old = secrets.c.stored_at < now - _GRACE_SECONDS
        with self._db.write() as connection:
            gone = delete(secrets).where(old, secrets.c.name.not_in(list(in_use)))
            return connection.execute(gone).rowcount


def put_secret(connection: Connection, tenant_id: str, value: str, now: float) -> str:
    """Store a tenant's secret and return its name, which is the same while it is stored.

    So a repeated request stays the same request.
    """
    digest = _digest(tenant_id, value)
    used_again = update(secrets).where(secrets.c.sha256 == digest).values(stored_at=now)
    name: str | None = None
    while name is None:  # It may be deleted in between.
        row = {"name": random_names.token_hex(16), "value": value, "stored_at": now}
        add_row(connection, secrets, {"sha256": digest}, row)
        name = connection.execute(used_again.returning(secrets.c.name)).scalar_one_or_none()
    return name


def _digest(tenant_id: str, value: str) -> str:
    return hashlib.sha256(f"{tenant_id}\0{value}".encode()).hexdigest()
