"""Which parts of the service are alive, where pools and engine hosts listen, and which pools are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import ColumnElement, Table, delete, select, update

from backend.store.database import Database, write_row
from backend.store.job_rows import EngineHostRecord, PoolRecord, RefusedPool
from backend.store.tables import engine_hosts, parts, pools, refused_pools, wanted_pools
from tinkergym.schema.events import ErrorView

_POOL = "pool:"
_ENGINES = "engines:"
CLUSTER = "cluster"
"""The part that is recorded while the Ray cluster in the settings does not answer."""
NODES = "nodes"
"""The part that is recorded while no node can be used, or none has what a waiting model needs."""


def pool_part(model: str) -> str:
    """Return the name under which a lost pool of a model is recorded as a part of the service."""
    return _POOL + model


def lost_pools(parts: Iterable[str]) -> set[str]:
    """Return the models whose pool is recorded as lost."""
    return {name.removeprefix(_POOL) for name in parts if name.startswith(_POOL)}


def engines_part(model: str) -> str:
    """Return the name under which engine hosts of a model are recorded that do not register."""
    return _ENGINES + model


def late_engines(parts: Iterable[str]) -> set[str]:
    """Return these names among others."""
    return {name for name in parts if name.startswith(_ENGINES)}


def without_model(part: str) -> str:
    """Return a part's name without that of its model."""
    return next((kind[:-1] for kind in (_POOL, _ENGINES) if part.startswith(kind)), part)


_WANTED_SECONDS = 60.0


class PartStore:
    """The store's methods by which the service's processes find each other."""

    _db: Database

    def register_pool(self, pool_id: str, model: str, url: str, token: str, now: float) -> None:
        """Register a pool's address; registering again replaces it."""
        row = {"model": model, "url": url, "token": token, "seen_at": now}
        with self._db.write() as connection:
            write_row(connection, pools, {"pool_id": pool_id}, row)

    def touch_pool(self, pool_id: str, now: float) -> bool:
        """Record that a pool is alive; return False if it is not (or no longer) registered."""
        with self._db.write() as connection:
            changed = connection.execute(update(pools).where(pools.c.pool_id == pool_id).values(seen_at=now))
            return changed.rowcount > 0

    def record_pool_memory(self, memory_bytes: Mapping[str, int]) -> None:
        """Record how much memory pools use; unregistered pools are ignored."""
        with self._db.write() as connection:
            for pool_id, size in memory_bytes.items():
                connection.execute(update(pools).where(pools.c.pool_id == pool_id).values(memory_bytes=size))

    def remove_pool(self, pool_id: str) -> str | None:
        """Remove a pool; returns its URL, None if it is not registered."""
        return self._removed(pools, pools.c.pool_id == pool_id)

    def register_engine_host(
        self, engine_id: str, *, pool_id: str, model: str, node: str, url: str, now: float
    ) -> None:
        """Record that an engine host serves; recording again replaces it. Its pool alone knows its token."""
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
        return self._removed(engine_hosts, engine_hosts.c.engine_id == engine_id)

    def engine_hosts(self) -> list[EngineHostRecord]:
        """Return all engine hosts, sorted by model and name."""
        order = engine_hosts.c.model, engine_hosts.c.engine_id
        with self._db.read() as connection:
            rows = connection.execute(select(engine_hosts).order_by(*order))
            return [EngineHostRecord(**row._mapping) for row in rows]

    def _removed(self, table: Table, which: ColumnElement[bool]) -> str | None:
        with self._db.write() as connection:
            gone = delete(table).where(which).returning(table.c.url)
            return connection.execute(gone).scalar_one_or_none()

    def silence_pools(self) -> None:
        """Record that no pool is alive. They stay registered, so a new scheduler requeues their jobs."""
        with self._db.write() as connection:
            connection.execute(update(pools).values(seen_at=0.0))

    def pools(self, now: float, max_age: float = 30.0) -> list[PoolRecord]:
        """Return the pools seen in the last `max_age` seconds, the most recent first."""
        known = self._db.read_cache.get("pools", self._all_pools)
        return [pool for pool in known if pool.seen_at >= now - max_age]

    def _all_pools(self) -> list[PoolRecord]:
        with self._db.read() as connection:
            rows = connection.execute(select(pools).order_by(pools.c.seen_at.desc()))
            return [PoolRecord(**row._mapping) for row in rows]

    def want_pool(self, model: str, now: float) -> None:
        """Ask the scheduler for a pool of this model even if no job needs one."""
        with self._db.write() as connection:
            write_row(connection, wanted_pools, {"model": model}, {"wanted_at": now})

    def wanted_pools(self, now: float) -> list[str]:
        """Return the models requested in the last minute, the most recent first."""
        with self._db.read() as connection:
            return list(
                connection.scalars(
                    select(wanted_pools.c.model)
                    .where(wanted_pools.c.wanted_at >= now - _WANTED_SECONDS)
                    .order_by(wanted_pools.c.wanted_at.desc())
                )
            )

    def note_refusal(self, model: str, error: ErrorView, now: float) -> None:
        """Record why a model's pool does not start; a later reason replaces an earlier one."""
        row = {"error": error.model_dump_json(), "refused_at": now}
        with self._db.write() as connection:
            write_row(connection, refused_pools, {"model": model}, row)

    def forget_refusal(self, model: str) -> None:
        """Record that the model's pool has started."""
        with self._db.write() as connection:
            connection.execute(delete(refused_pools).where(refused_pools.c.model == model))

    def forget_refusals(self) -> None:
        """Delete all these records: a restarted service may have other settings."""
        with self._db.write() as connection:
            connection.execute(delete(refused_pools))

    def refusals(self) -> dict[str, RefusedPool]:
        """Return the models whose pool failed at its last start, with the reasons."""
        with self._db.read() as connection:
            return {
                row.model: RefusedPool(
                    error=ErrorView.model_validate_json(row.error), refused_at=row.refused_at
                )
                for row in connection.execute(select(refused_pools))
            }

    def touch_part(self, name: str, now: float) -> None:
        """Record that a part of the service (`scheduler`) is alive."""
        with self._db.write() as connection:
            write_row(connection, parts, {"name": name}, {"seen_at": now})

    def forget_part(self, name: str) -> None:
        """Record that a part has stopped, without waiting until its silence is noticed."""
        with self._db.write() as connection:
            connection.execute(delete(parts).where(parts.c.name == name))

    def parts(self, now: float) -> dict[str, float]:
        """Return the seconds since each known part was last seen."""
        with self._db.read() as connection:
            return {row.name: now - row.seen_at for row in connection.execute(select(parts))}
