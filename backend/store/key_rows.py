"""API keys and their tenants."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import NoResultFound

from backend.store.database import Database, add_row
from backend.store.key_rates import KeyRate, KeyRates
from backend.store.tables import api_keys, sessions, tenants
from tinkergym.errors import NotFoundError
from tinkergym.schema.summaries import KeyView

_PREFIX = "tg-"
_SESSION_PREFIX = "tg-session-"
SESSION_SECONDS = 30 * 86_400
"""How long a browser stays logged in."""
_MOST_SESSIONS = 20
"""Of one key; the oldest end."""
_KEY_ID = re.compile(r"key-[0-9a-z]{1,24}")
_LISTED = "`tinkergym keys list` shows the ids, which begin with key-"

LOCAL_TENANT = "local"
"""The tenant of the key in `local.json`: the owner of the service's machine account."""


@dataclass(frozen=True, slots=True)
class KeyRights:
    """What a valid key allows."""

    tenant_id: str
    read_only: bool
    rate: KeyRate | None = None
    """How much it may sample; None is not limited."""


class KeyStore:
    """Creates, checks and revokes keys."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock
        self.rates = KeyRates(database, clock)

    def ensure_tenant(self, tenant_id: str) -> None:
        """Create the tenant unless it exists."""
        with self._db.write() as connection:
            row = {"name": tenant_id, "created_at": self._clock()}
            add_row(connection, tenants, {"tenant_id": tenant_id}, row)

    def create(
        self,
        tenant_id: str,
        name: str,
        *,
        read_only: bool = False,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> str:
        """Create a key for a tenant, and the tenant if needed, and return it; it cannot be read again."""
        self.ensure_tenant(tenant_id)
        key = _PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as connection:
            connection.execute(
                api_keys.insert().values(
                    key_id=f"key-{secrets.token_hex(6)}",
                    sha256=_sha256(key),
                    tenant_id=tenant_id,
                    name=name,
                    created_at=self._clock(),
                    read_only=read_only,
                    requests_per_minute=requests_per_minute,
                    tokens_per_minute=tokens_per_minute,
                )
            )
        return key

    def id_of(self, key: str) -> str:
        """Return the id by which a key is listed and revoked.

        Raises:
            NotFoundError: The key does not exist.
        """
        with self._db.read() as connection:
            key_id = connection.scalar(select(api_keys.c.key_id).where(api_keys.c.sha256 == _sha256(key)))
        if key_id is None:
            raise NotFoundError("this key does not exist")
        return str(key_id)

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of a key; None if the key is unknown or revoked."""
        rights = self.rights_of(key)
        return None if rights is None else rights.tenant_id

    def rights_of(self, key: str) -> KeyRights | None:
        """Return whose key it is and what it allows; None if it is unknown or revoked."""
        if not key.startswith(_PREFIX):
            return None
        # The lookup is by hash, so timing reveals nothing about existing keys.
        sha256 = _sha256(key)
        try:
            return self._db.read_cache.get(("rights of key", sha256), lambda: self._rights_of(sha256))
        except NoResultFound:
            return None  # not cached: anyone can invent keys

    def _rights_of(self, sha256: str) -> KeyRights:
        its_session = select(sessions.c.key_id).where(
            sessions.c.sha256 == sha256, sessions.c.expires_at > self._clock()
        )
        with self._db.read() as connection:
            row = connection.execute(
                select(api_keys).where(
                    or_(api_keys.c.sha256 == sha256, api_keys.c.key_id == its_session.scalar_subquery()),
                    api_keys.c.revoked_at.is_(None),
                )
            ).one()
        limits = row.requests_per_minute, row.tokens_per_minute
        rate = None if limits == (None, None) else KeyRate(row.key_id, *limits)
        return KeyRights(row.tenant_id, row.read_only, rate)

    def open_session(self, key: str) -> str | None:
        """Return a secret with the key's rights, until it expires, is closed, or the key is revoked.

        None if the key is unknown or revoked, or is itself such a secret.
        """
        if key.startswith(_SESSION_PREFIX) or self.rights_of(key) is None:
            return None
        token, now = _SESSION_PREFIX + secrets.token_urlsafe(32), self._clock()
        row = {"sha256": _sha256(token), "key_id": self.id_of(key), "expires_at": now + SESSION_SECONDS}
        with self._db.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
            mine = select(sessions.c.sha256).where(sessions.c.key_id == row["key_id"])
            newest = mine.order_by(sessions.c.expires_at.desc())
            old = connection.scalars(newest.offset(_MOST_SESSIONS - 1)).all()
            connection.execute(delete(sessions).where(sessions.c.sha256.in_(old)))
            connection.execute(sessions.insert().values(row))
        return token

    def close_session(self, token: str) -> None:
        """End a session; an unknown one has ended already."""
        with self._db.write() as connection:
            connection.execute(delete(sessions).where(sessions.c.sha256 == _sha256(token)))

    def list(self, tenant_id: str | None = None) -> list[KeyView]:
        """Return the keys of a tenant, or of all tenants, oldest first, including revoked ones."""
        wanted = select(api_keys).order_by(api_keys.c.created_at)
        with self._db.read() as connection:
            rows = connection.execute(
                wanted if tenant_id is None else wanted.where(api_keys.c.tenant_id == tenant_id)
            )
            return [
                KeyView(
                    key_id=row.key_id,
                    tenant_id=row.tenant_id,
                    name=row.name,
                    created_at=row.created_at,
                    revoked_at=row.revoked_at,
                    read_only=row.read_only,
                    requests_per_minute=row.requests_per_minute,
                    tokens_per_minute=row.tokens_per_minute,
                )
                for row in rows
            ]

    def revoke(self, key_id: str) -> None:
        """Revoke a key.

        Raises:
            NotFoundError: There is no such key. The message never repeats a key.
        """
        if not _KEY_ID.fullmatch(key_id):
            raise NotFoundError("that is not a key id", hint=self._where_the_id_is(key_id))
        with self._db.write() as connection:
            changed = connection.execute(
                update(api_keys)
                .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=self._clock())
            ).rowcount
            if not changed and not connection.scalar(
                select(api_keys.c.key_id).where(api_keys.c.key_id == key_id)
            ):
                raise NotFoundError(f"there is no key {key_id}")

    def _where_the_id_is(self, key: str) -> str:
        """Return the key's id if the text is the key itself."""
        try:
            return f"that is a key, not an id; its id is {self.id_of(key)}"
        except NotFoundError:
            return _LISTED


def _sha256(key: str) -> str:
    # A slow password hash is not needed: the key has 256 random bits.
    return hashlib.sha256(key.encode()).hexdigest()
