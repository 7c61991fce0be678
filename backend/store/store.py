"""The service's state, and the only code with SQL.

A gateway uses `tenant(...)`, which sees one tenant; the scheduler and the job loops use `service()`, where
every write for a job needs its lease. When a method returns, its changes are on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Self

from sqlalchemy import select

from backend.errors import ConfigError
from backend.store.copied_runs import add_copied_run
from backend.store.database import Database, SchedulerLock
from backend.store.episode_results import EpisodeStore
from backend.store.job_leases import JobLeaseStore
from backend.store.job_rows import (
    MOST_QUEUE_REASON,
    HeldJob,
    JobLease,
    PoolRecord,
    QueuedJob,
    QueueGroup,
    job_row,
)
from backend.store.journal import JournalStore
from backend.store.key_rows import KeyStore
from backend.store.policies import PolicyStore, checkpoints_by_key
from backend.store.policy_call_rows import PolicyCalls, PolicyCallStore
from backend.store.postgres import DatabaseUnreachableError, lacks_rights
from backend.store.references import ReferredPolicy, find_policy
from backend.store.schema_version import HEAD, require_current_schema
from backend.store.secret_rows import SecretRows
from backend.store.service_parts import PartStore
from backend.store.stored_facts import FactStore
from backend.store.tables import images, jobs, tenants
from backend.store.tenant import TenantStore
from tinkergym.errors import InternalServiceError
from tinkergym.schema.certificate import StepLedger
from tinkergym.schema.events import Event
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.view import JobView

__all__ = [
    "MOST_QUEUE_REASON",
    "HeldJob",
    "JobLease",
    "PoolRecord",
    "QueueGroup",
    "QueuedJob",
    "ServiceStore",
    "Store",
    "TenantStore",
]


class ServiceStore(
    JobLeaseStore,
    JournalStore,
    PolicyStore,
    EpisodeStore,
    FactStore,
    PolicyCallStore,
    PartStore,
    SecretRows,
):
    """The store as the scheduler, job loops and pools see it."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock

    def commits(self) -> int | None:
        """Return a number that changes with every commit; None if that is unknown now."""
        return self._db.backend.commits()

    def scheduler_lock(self) -> SchedulerLock:
        """Return this process's claim to be the service's only active scheduler."""
        return self._db.backend.scheduler_lock()

    def image_owners(self, sha256: str) -> list[str]:
        """Return the tenants that have sent an image."""
        with self._db.read() as connection:
            return list(connection.scalars(select(images.c.tenant_id).where(images.c.sha256 == sha256)))

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
        self.schema = HEAD
        """The schema's revision."""

    @classmethod
    def open(
        cls, url: str, *, clock: Callable[[], float] = time.time, part: str = "", upgrade: bool = False
    ) -> Self:
        """Open the database at `url`, creating its tables (and a SQLite file) if needed.

        Args:
            url: Its location.
            clock: Returns Unix seconds, for timestamps of events and rows.
            part: The part of the service that opens it, by which its server lists connections.
            upgrade: Whether to upgrade an older schema: only while no other process uses the database.

        Raises:
            ConfigError: It cannot be opened, or has a different schema.
            MissingExtraError: Its driver is not installed.
            StorageFullError: The disk is full.
        """
        database = Database(url, part)
        try:
            require_current_schema(database, upgrade=upgrade)
        except DatabaseUnreachableError as error:
            database.close()
            raise ConfigError(error.message, hint=error.hint, field="database_url") from error
        except InternalServiceError as error:
            database.close()
            if not lacks_rights(error):
                raise
            raise ConfigError(
                f"the user in database_url may not do what is needed: {error.message}",
                hint="make it the database's owner: createdb --owner=USER NAME",
                field="database_url",
            ) from error
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

    def add_copied_run(
        self, tenant_id: str, job: JobView, log: Iterable[Event], ledgers: Iterable[StepLedger]
    ) -> None:
        """Write a run that another service recorded; see `copied_runs.add_copied_run`."""
        add_copied_run(self._db, tenant_id, job, log, ledgers)

    def has_job(self, job_id: str, *, before: float = float("inf")) -> bool:
        """Return whether this job exists for any tenant, and was created before a time."""
        with self._db.read() as connection:
            row = job_row(connection, job_id)
            return row is not None and row.created_at < before

    def tenants_with_images(self) -> list[str]:
        """Return the tenants that have sent images."""
        with self._db.read() as connection:
            return list(connection.scalars(select(images.c.tenant_id).distinct()))

    def last_seqs(self, job_ids: Collection[str]) -> dict[str, int]:
        """Return the number of each job's newest event, in one cheap read; unknown jobs are left out."""
        with self._db.read() as connection:
            query = select(jobs.c.job_id, jobs.c.last_seq).where(jobs.c.job_id.in_(job_ids))
            return {row.job_id: row.last_seq for row in connection.execute(query)}

    def commits(self) -> int | None:
        """Return a number that changes with every commit; None if that is unknown now."""
        return self._db.backend.commits()

    def identity(self) -> str:
        """Return what tells this database from others, and is the same in its copies."""
        with self._db.read() as connection:
            first = connection.execute(
                select(tenants.c.tenant_id, tenants.c.created_at).order_by(tenants.c.created_at)
            ).first()
        return "" if first is None else f"{first.tenant_id} {first.created_at!r}"

    def unique_name(self) -> str:
        """Return what tells this database from all others, its copies too, however its URL is spelled."""
        with self._db.read() as connection:
            place = self._db.backend.place(connection)
        return f"{self.identity()} {place}"

    def checkpoint_keys(self, job_id: str) -> set[str] | None:
        """Return the keys of a job's checkpoints among all jobs' files; None without such a job."""
        with self._db.read() as connection:
            if job_row(connection, job_id) is None:
                return None
            return set(checkpoints_by_key(connection, job_id))

    def tenants_with_jobs(self) -> list[str]:
        """Return the tenants that have jobs, in alphabetical order."""
        with self._db.read() as connection:
            return sorted(connection.scalars(select(jobs.c.tenant_id).distinct()))

    def close(self) -> None:
        """Close the database's connections."""
        self._db.close()
