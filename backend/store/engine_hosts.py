"""The engine hosts of pools: one more engine each, in a process of its own."""

from __future__ import annotations

from sqlalchemy import delete, select, update

from backend.store.database import Database, write_row
from backend.store.job_rows import EngineHostRecord
from backend.store.tables import engine_hosts


class EngineHostStore:
    """The store's methods about engine hosts. Their tokens are known to their pools only."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def register_engine_host(
        self, engine_id: str, *, pool_id: str, model: str, node: str, url: str, now: float
    ) -> None:
        """Record that an engine host serves; recording again replaces it."""
        row = {"pool_id": pool_id, "model": model, "node": node, "url": url, "seen_at": now}
        with self._db.write() as connection:
            write_row(connection, engine_hosts, {"engine_id": engine_id}, row)

    def touch_engine_host(self, engine_id: str, now: float, memory_bytes: int) -> None:
        """Record that an engine host is alive; does nothing if it is not (or no longer) recorded."""
        mine = engine_hosts.c.engine_id == engine_id
        row = {"seen_at": now, "memory_bytes": memory_bytes}
        with self._db.write() as connection:
            connection.execute(update(engine_hosts).where(mine).values(row))

    def remove_engine_host(self, engine_id: str) -> str | None:
        """Remove an engine host; returns its URL, None if it is not recorded."""
        gone = delete(engine_hosts).where(engine_hosts.c.engine_id == engine_id).returning(engine_hosts.c.url)
        with self._db.write() as connection:
            return connection.execute(gone).scalar_one_or_none()

    def engine_hosts(self) -> list[EngineHostRecord]:
        """Return all engine hosts, sorted by model and name."""
        order = engine_hosts.c.model, engine_hosts.c.engine_id
        with self._db.read() as connection:
            rows = connection.execute(select(engine_hosts).order_by(*order))
            return [EngineHostRecord(**row._mapping) for row in rows]
