"""Rows as the rest of the service sees them, and the two steps that each change of a job consists of.

`fenced` checks in a transaction that the writer still holds the job; `append` writes the next event.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, Select, select, update

from backend.errors import LeaseLostError
from backend.store.tables import checkpoints, events, job_policies, jobs
from tinkergym.schema.events import (
    CheckpointView,
    ErrorView,
    Event,
    EventBody,
    JobState,
    SettingsUpdate,
    StateEvent,
)
from tinkergym.schema.jobs.spec import JobSpec, stored_spec
from tinkergym.schema.jobs.view import INSTALLED_PACKS, JobView
from tinkergym.schema.steering import settings_now

MOST_QUEUE_REASON = 600
"""Characters of the reason why a job is queued; its event has all of them."""

FINAL_STATES = tuple(state.value for state in JobState if state.final)

BODY: TypeAdapter[EventBody] = TypeAdapter(EventBody)

UPDATES: TypeAdapter[list[SettingsUpdate]] = TypeAdapter(list[SettingsUpdate])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLease:
    """A worker's time-limited right to run a job, required for every write of the job's loop."""

    job_id: str
    worker_id: str
    epoch: int
    """Grows when the job changes workers; writes with an older epoch are refused."""
    attempt: int
    """1 for the first worker that takes the job."""
    spec: JobSpec
    tenant_id: str
    expires_at: float
    """Unix seconds. After this another worker may take the job; until one does, this lease stays valid."""
    recorded_steps: int = 0
    """The last step that earlier attempts recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that waits for a worker."""

    job_id: str
    tenant_id: str
    model: str
    created_at: float
    reason: str
    """Why it is queued, as shown to its tenant."""
    other_models: tuple[str, ...] = ()
    """Base models to load next to its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueGroup:
    """Queued jobs of one tenant on one model that wait for the same reason."""

    model: str
    tenant_id: str
    reason: str
    oldest: int
    """The number of the oldest: it grows in order of creation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job held by a worker."""

    job_id: str
    tenant_id: str
    worker_id: str
    state: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """The address of a pool worker."""

    pool_id: str
    model: str
    url: str
    """See `backend.worker_url`."""
    token: str
    """Bearer token of its endpoint."""
    seen_at: float
    memory_bytes: int = 0
    """Memory used by it and its environment workers; 0 while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHostRecord:
    """An engine host of a pool."""

    engine_id: str
    pool_id: str
    model: str
    node: str
    """The address of its machine; empty on a service's only one."""
    url: str
    """See `backend.worker_url`."""
    seen_at: float
    memory_bytes: int = 0
    """0 while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPool:
    """Why a model's pool failed at its last start."""

    error: ErrorView
    refused_at: float
    """Unix seconds."""


def job_view(row: Row[Any]) -> JobView:
    """Read a row of `jobs`."""
    updates = UPDATES.validate_json(row.updates)
    return JobView(
        job_id=row.job_id,
        spec=settings_now(stored_spec(row.spec), updates),
        state=JobState(row.state),
        reason=row.reason,
        error=None if row.error is None else ErrorView.model_validate_json(row.error),
        step=row.step,
        policy_version=row.policy_version,
        attempt=row.attempt,
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_seq=row.last_seq,
        updates=updates,
        used_seconds=row.used_seconds,
        used_tokens=row.used_tokens,
        packs=json.loads(row.packs),
        client_packs=INSTALLED_PACKS.validate_json(row.client_packs),
    )


def event_view(row: Row[Any]) -> Event:
    """Read a row of `events`."""
    return Event(seq=row.seq, job_id=row.job_id, time=row.time, body=BODY.validate_json(row.body))


def job_row(connection: Connection, job_id: str) -> Row[Any] | None:
    """Read a row of `jobs` in this transaction; if it writes, no other can change the row before its end."""
    return connection.execute(job_rows(connection).where(jobs.c.job_id == job_id)).one_or_none()


def job_rows(connection: Connection) -> Select[Any]:
    """Return a query for rows of `jobs`, locked until the end of a transaction that writes.

    Without the lock, two workers could find a job free, and both take it. SQLite has one writer at a time,
    and ignores it. Rows that refer to the job may still be inserted.
    """
    if connection.get_execution_options().get("postgresql_readonly"):
        return select(jobs)
    return select(jobs).order_by(jobs.c.number).with_for_update(key_share=True)


def fenced(connection: Connection, lease: JobLease) -> Row[Any]:
    """Return the job's row if `lease` is valid.

    Raises:
        LeaseLostError: The job ended, was requeued, or belongs to another worker.
    """
    row = job_row(connection, lease.job_id)
    if row is not None and row.state in FINAL_STATES:
        raise LeaseLostError(
            f"{lease.job_id} already ended as {row.state}", hint="nothing can be added to it any more"
        )
    if row is None or row.epoch != lease.epoch or row.worker_id != lease.worker_id:
        holder = f"now held by {row.worker_id}" if row is not None and row.worker_id else "no worker holds it"
        raise LeaseLostError(
            f"worker {lease.worker_id} lost {lease.job_id} ({holder})",
            hint="discard the result and take a new lease; raise lease_seconds if healthy workers see this",
        )
    return row


def append(connection: Connection, job_id: str, last_seq: int, now: float, body: EventBody) -> Event:
    """Write the job's next event, after `last_seq`, in this transaction."""
    event = Event(seq=last_seq + 1, job_id=job_id, time=now, body=body)
    connection.execute(
        events.insert().values(job_id=job_id, seq=event.seq, time=now, body=body.model_dump_json())
    )
    connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(last_seq=event.seq, updated_at=now))
    return event


def enter_state(
    connection: Connection, row: Row[Any], now: float, body: StateEvent, **columns: object
) -> Event:
    """Move the job of `row` into `body.state` and log it, in this transaction, together with `columns`.

    Episode results not covered by a checkpoint stay: an ended job is not resumed, but its owner may ask what
    was played.

    When a policy that its owner trained by calls ends, its newest version is that of its newest checkpoint:
    a version published earlier may have none.
    """
    by_calls = body.state.final and stored_spec(row.spec).by_calls
    if by_calls and (kept := checkpoint_views(connection, row.job_id)):
        columns["policy_version"] = kept[-1].policy_version
    connection.execute(
        update(jobs)
        .where(jobs.c.job_id == row.job_id)
        .values(
            state=body.state.value,
            # A queued one is in an index, whose entries are limited.
            reason=body.reason[:MOST_QUEUE_REASON] if body.state is JobState.QUEUED else body.reason,
            error=None if body.error is None else body.error.model_dump_json(),
            **columns,
        )
    )
    return append(connection, row.job_id, row.last_seq, now, body)


NO_AGENT = ""
"""Stands for the agent in a job that trains a single policy, which is not named after a seat."""


def checkpoint_views(connection: Connection, job_id: str, agent: str = NO_AGENT) -> list[CheckpointView]:
    """Read the checkpoints of the policy that a job trains, oldest first."""
    rows = connection.execute(
        select(checkpoints.c.view)
        .join(job_policies, job_policies.c.policy_id == checkpoints.c.policy_id)
        .where(job_policies.c.job_id == job_id, job_policies.c.agent == agent)
        .order_by(checkpoints.c.step)
    )
    return [CheckpointView.model_validate_json(view) for (view,) in rows]
