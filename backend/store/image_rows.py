"""Which images a tenant has sent, how large they are, and when each was last used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, select, update

from backend.store.database import Database, write_row
from backend.store.job_rows import FINAL_STATES
from backend.store.tables import images, jobs

_AT_ONCE = 500
"""Hashes per statement: databases bound their number."""

_EXACT_SECONDS = 600.0
"""An image used again within this time is not written again: prompts name the same images each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRow:
    """An image that a tenant has sent."""

    sha256: str
    bytes: int
    used_at: float
    """Unix seconds, at most ten minutes too early."""


class ImageRows:
    """One tenant's images."""

    def __init__(self, database: Database, tenant_id: str, clock: Callable[[], float]) -> None:
        self._db, self.tenant_id, self.now = database, tenant_id, clock

    def use(self, hashes: Sequence[str]) -> set[str]:
        """Return which of these images there are; they count as used now."""
        found: dict[str, float] = {}
        with self._db.read() as connection:
            for at in range(0, len(hashes), _AT_ONCE):
                query = select(images.c.sha256, images.c.used_at).where(
                    *self._among(hashes[at : at + _AT_ONCE])
                )
                found |= {row.sha256: row.used_at for row in connection.execute(query)}
        now = self.now()
        old = [sha256 for sha256, used_at in found.items() if used_at < now - _EXACT_SECONDS]
        if old:
            with self._db.write() as connection:
                for at in range(0, len(old), _AT_ONCE):
                    connection.execute(
                        update(images).where(*self._among(old[at : at + _AT_ONCE])).values(used_at=now)
                    )
        return set(found)

    def add(self, rows: Iterable[ImageRow]) -> None:
        """Add images, or renew them."""
        with self._db.write() as connection:
            for row in rows:
                keys = {"tenant_id": self.tenant_id, "sha256": row.sha256}
                write_row(connection, images, keys, {"bytes": row.bytes, "used_at": row.used_at})

    def all(self) -> list[ImageRow]:
        """Return them, used longest ago first."""
        query = (
            select(images.c.sha256, images.c.bytes, images.c.used_at)
            .where(images.c.tenant_id == self.tenant_id)
            .order_by(images.c.used_at)
        )
        with self._db.read() as connection:
            return [ImageRow(**row._mapping) for row in connection.execute(query)]

    def none(self) -> bool:
        """Return whether the tenant has no images."""
        query = select(func.count()).select_from(images).where(images.c.tenant_id == self.tenant_id)
        with self._db.read() as connection:
            return not connection.scalar(query)

    def unfinished_since(self) -> float | None:
        """Return when the tenant's oldest unfinished job was created, in Unix seconds; None without any."""
        query = select(func.min(jobs.c.created_at)).where(
            jobs.c.tenant_id == self.tenant_id, jobs.c.state.not_in(FINAL_STATES)
        )
        with self._db.read() as connection:
            oldest: float | None = connection.scalar(query)
        return oldest

    def remove(self, sha256: str) -> None:
        """Remove an image."""
        with self._db.write() as connection:
            connection.execute(delete(images).where(*self._among([sha256])))

    def _among(self, hashes: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
        return images.c.tenant_id == self.tenant_id, images.c.sha256.in_(hashes)
