"""The service's state, and the only code with SQL.

A gateway uses `tenant(...)`, which sees one tenant; the scheduler and the job loops use `service()`, where
every write for a job needs its lease. When a method returns, its changes are on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from sqlalchemy import func, select

from backend.errors import ConfigError
from backend.store.database import Database
from backend.store.episodes import EpisodeStore
from backend.store.job_rows import HeldJob, JobLease, PoolRecord, QueuedJob, job_row
from backend.store.journal import JournalStore
from backend.store.keys import KeyStore
from backend.store.leases import LeaseStore
from backend.store.place import database_file
from backend.store.policies import PolicyStore
from backend.store.policy_calls import PolicyCalls, PolicyCallStore
from backend.store.references import ReferredPolicy, find_policy
from backend.store.schema_version import require_current_schema
from backend.store.service_parts import PartStore
from backend.store.stored_facts import FactStore
from backend.store.tables import events
from backend.store.tenant import TenantStore
from tinkergym.schema.ids import PolicyRef

__all__ = ["HeldJob", "JobLease", "PoolRecord", "QueuedJob", "ServiceStore", "Store", "TenantStore"]


class ServiceStore(
    LeaseStore, JournalStore, PolicyStore, EpisodeStore, FactStore, PolicyCallStore, PartStore
):
    """The store as the scheduler, job loops and pools see it."""

    def commits(self) -> int | None:
        """Return a number that changes with every commit; None if the database is unavailable."""
        return self._db.read_cache.commits()

    def find_policy(self, ref: PolicyRef, *, field: str = "policy") -> ReferredPolicy:
        """Return the policy that a reference names; see `TenantStore.find_policy`."""
        with self._db.read() as connection:
            return find_policy(connection, ref, tenant_id=None, field=field)


class Store:
    """An open database. Threads may share it; each process opens its own."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock
        self.keys = KeyStore(database, clock)

    @classmethod
    def open(cls, url: str, *, clock: Callable[[], float] = time.time) -> Self:
        """Open the database at `url`, creating it if needed.

        Args:
            url: Its location.
            clock: Returns Unix seconds, for timestamps of events and rows.

        Raises:
            ConfigError: It cannot be opened, or has a different schema version.
            StorageFullError: The disk is full.
        """
        path = database_file(url)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path.parent} cannot be created: {error.strerror or error}", field="database_url"
            ) from error
        database = Database(path)
        require_current_schema(database)
        return cls(database, clock)

    def tenant(self, tenant_id: str) -> TenantStore:
        """Return the store as one tenant sees it."""
        return TenantStore(self._db, tenant_id, self._clock)

    def policy_calls(self) -> PolicyCalls:
        """Return the calls of policies, for a gateway that has checked the tenant."""
        return PolicyCalls(self._db)

    def service(self) -> ServiceStore:
        """Return the store as the service's own parts see it."""
        return ServiceStore(self._db, self._clock)

    def has_job(self, job_id: str) -> bool:
        """Return whether this job exists for any tenant."""
        with self._db.read() as connection:
            return job_row(connection, job_id) is not None

    def last_position(self) -> int:
        """Return the position of the newest event of all jobs, from which `jobs_with_news` can start."""
        with self._db.read() as connection:
            return connection.scalar(select(func.max(events.c.position))) or 0

    def jobs_with_news(self, position: int) -> tuple[int, set[str]]:
        """Return the newest position and the jobs with events after `position`, in one cheap read."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(events.c.position, events.c.job_id).where(events.c.position > position)
            ).all()
        return max((row.position for row in rows), default=position), {row.job_id for row in rows}

    def close(self) -> None:
        """Close the database's connections."""
        self._db.close()
