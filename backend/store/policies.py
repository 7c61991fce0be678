"""Policies: a base model plus an adapter, with an owner, versions and checkpoints that jobs make and need."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, delete, or_, select

from backend.store.blobs import checkpoint_key
from backend.store.database import Database, write_row
from backend.store.job_rows import FINAL_STATES, NO_AGENT, JobLease, checkpoint_views, fenced
from backend.store.tables import checkpoints, job_policies, jobs, policies, served_names, versions
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.ids import PolicyRef, new_policy_id
from tinkergym.schema.jobs.parts import Adapter
from tinkergym.schema.jobs.spec import JobSpec, stored_spec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.served_names import ServedName

_ADAPTER: TypeAdapter[Adapter] = TypeAdapter(Adapter)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """A row of `policies`."""

    policy_id: str
    tenant_id: str
    model: str
    """The base model's name in the catalog."""
    adapter: Adapter
    created_at: float
    """Unix seconds."""
    made_by_job: str | None
    """The job that created it."""


class PolicyStore:
    """The store's methods for versions and checkpoints."""

    _db: Database

    def version_sha256(self, job_id: str, version: int, agent: str = NO_AGENT) -> str | None:
        """Return the recorded hash of a version of the policy that a job trains."""
        with self._db.read() as connection:
            return connection.scalar(
                select(versions.c.weights_sha256)
                .join(job_policies, job_policies.c.policy_id == versions.c.policy_id)
                .where(
                    job_policies.c.job_id == job_id,
                    job_policies.c.agent == agent,
                    versions.c.version == version,
                )
            )

    def add_checkpoint(self, lease: JobLease, view: CheckpointView, agent: str = NO_AGENT) -> None:
        """Register a checkpoint; it replaces one of the same step.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            fenced(connection, lease)
            policy_id = trained_policy(connection, lease.job_id, agent)
            keys = {"policy_id": policy_id, "step": view.step}
            write_row(connection, checkpoints, keys, {"view": view.model_dump_json()})

    def remove_checkpoint(
        self, lease: JobLease, step: int, agent: str = NO_AGENT, *, unused_version: int | None = None
    ) -> bool:
        """Remove a checkpoint's record; the caller deletes its files afterwards.

        Args:
            lease: The job's.
            step: The checkpoint's.
            agent: Whose policy it is.
            unused_version: Its version, if it stays while other jobs need it or names serve it; that is
                read in the same transaction, so that no promotion comes in between.

        Returns:
            Whether its files may be deleted.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            fenced(connection, lease)
            in_use = set() if unused_version is None else versions_in_use(connection, lease.job_id, agent)
            if unused_version in in_use:
                return False
            policy_id = trained_policy(connection, lease.job_id, agent)
            connection.execute(
                delete(checkpoints).where(checkpoints.c.policy_id == policy_id, checkpoints.c.step == step)
            )
        return True

    def policies_of(self, job_id: str) -> dict[str, str]:
        """Return the ids of the policies that a job trains, by agent; "" is the agent of a single policy."""
        with self._db.read() as connection:
            return policies_by_agent(connection, job_id)

    def checkpoints(self, job_id: str, agent: str = NO_AGENT) -> list[CheckpointView]:
        """Return the checkpoints of the job's policy, oldest first; an empty list for an unknown job."""
        with self._db.read() as connection:
            return checkpoint_views(connection, job_id, agent)


def add_policy(
    connection: Connection, *, job_id: str, tenant_id: str, spec: TrainingSpec, now: float
) -> None:
    """Create the policies of a new job, in the transaction that creates the job."""
    for agent in spec.trained_agents:
        policy_id = new_policy_id()
        connection.execute(
            policies.insert().values(
                policy_id=policy_id,
                tenant_id=tenant_id,
                model=spec.for_agent(agent).model,
                adapter=spec.adapter_of(agent).model_dump_json(),
                created_at=now,
                made_by_job=job_id,
            )
        )
        connection.execute(job_policies.insert().values(job_id=job_id, agent=agent, policy_id=policy_id))


def forget_policies(connection: Connection, job_id: str) -> None:
    """Delete the policies that a job created, with their versions and checkpoints, in this transaction."""
    made = select(policies.c.policy_id).where(policies.c.made_by_job == job_id)
    for table in (versions, checkpoints):
        connection.execute(delete(table).where(table.c.policy_id.in_(made)))
    connection.execute(delete(job_policies).where(job_policies.c.job_id == job_id))
    connection.execute(delete(policies).where(policies.c.made_by_job == job_id))


def checkpoints_by_key(connection: Connection, job_id: str) -> dict[str, CheckpointView]:
    """Return all checkpoints of a job, by their keys among the files of all jobs."""
    return {
        checkpoint_key(job_id, agent, view): view
        for agent in policies_by_agent(connection, job_id)
        for view in checkpoint_views(connection, job_id, agent)
    }


def checkpoint_files(connection: Connection) -> set[str]:
    """Return the keys of all files of all checkpoints, among the files of all jobs."""
    return {
        f"{key}/{name}"
        for job_id in connection.scalars(select(jobs.c.job_id)).all()
        for key, view in checkpoints_by_key(connection, job_id).items()
        for name in view.files
    }


def record_version(
    connection: Connection,
    job_id: str,
    *,
    version: int,
    train_step: int,
    weights_sha256: str,
    agent: str = NO_AGENT,
) -> None:
    """Record a published version; if it is published again after a resume, the last record counts."""
    made = {"train_step": train_step, "weights_sha256": weights_sha256}
    keys = {"policy_id": trained_policy(connection, job_id, agent), "version": version}
    write_row(connection, versions, keys, made)


def policies_by_agent(connection: Connection, job_id: str) -> dict[str, str]:
    """Return the ids of the policies that a job trains, by agent."""
    rows = connection.execute(
        select(job_policies.c.agent, job_policies.c.policy_id)
        .where(job_policies.c.job_id == job_id)
        .order_by(job_policies.c.agent)
    )
    return {row.agent: row.policy_id for row in rows}


def trained_policy(connection: Connection, job_id: str, agent: str = NO_AGENT) -> str:
    """Return the id of the policy that a job trains for an agent."""
    return policies_by_agent(connection, job_id)[agent]


def policy_row(connection: Connection, policy_id: str) -> Row[Any] | None:
    """Read one row of `policies` in this transaction."""
    return connection.execute(select(policies).where(policies.c.policy_id == policy_id)).one_or_none()


def policy_record(row: Row[Any]) -> PolicyRecord:
    """Read a row of `policies`."""
    return PolicyRecord(
        policy_id=row.policy_id,
        tenant_id=row.tenant_id,
        model=row.model,
        adapter=_ADAPTER.validate_json(row.adapter),
        created_at=row.created_at,
        made_by_job=row.made_by_job,
    )


def names_of(connection: Connection, tenant_id: str) -> list[ServedName]:
    """Return a tenant's names in this transaction."""
    rows = connection.execute(
        select(served_names).where(served_names.c.tenant_id == tenant_id).order_by(served_names.c.name)
    )
    shown = set(ServedName.model_fields)
    return [
        ServedName(**{name: value for name, value in row._mapping.items() if name in shown}) for row in rows
    ]


def references_of(spec: JobSpec) -> list[PolicyRef]:
    """Return the policies and jobs that a job depends on."""
    return [PolicyRef.parse(text) for text in dict.fromkeys(spec.references().values())]


def versions_in_use(connection: Connection, job_id: str, agent: str) -> set[int]:
    """Return the versions of a job's policy that its tenant's unfinished jobs or names need."""
    tenant_id = connection.scalar(select(jobs.c.tenant_id).where(jobs.c.job_id == job_id))
    policy_id = connection.scalar(
        select(job_policies.c.policy_id).where(job_policies.c.job_id == job_id, job_policies.c.agent == agent)
    )
    specs = connection.scalars(
        select(jobs.c.spec).where(
            jobs.c.tenant_id == tenant_id,
            jobs.c.job_id != job_id,
            jobs.c.state.not_in(FINAL_STATES),
            # Only the few jobs that name this one are read.
            or_(jobs.c.spec.contains(job_id), jobs.c.spec.contains(policy_id)),
        )
    )
    served = [ref for name in names_of(connection, tenant_id or "") for ref in name.versions]
    return {
        ref.version
        for ref in chain(served, *(references_of(stored_spec(spec)) for spec in specs))
        if ref.version is not None and (ref.owner == policy_id or (ref.owner, ref.agent) == (job_id, agent))
    }
