"""Which worker runs which job: acquiring, renewing, releasing and reclaiming leases."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    func,
    literal_column,
    or_,
    select,
    update,
)

from backend.errors import LeaseLostError
from backend.store.database import Database
from backend.store.job_rows import (
    BODY,
    FINAL_STATES,
    MOST_QUEUE_REASON,
    HeldJob,
    JobLease,
    QueuedJob,
    QueueGroup,
    enter_state,
    fenced,
    job_row,
    job_rows,
    job_view,
)
from backend.store.tables import events, jobs, tenants
from backend.store.usage import StopRequest, counted, stop_request_of
from tinkergym.errors import NotFoundError
from tinkergym.schema.events import CheckpointEvent, ErrorView, JobState, StateEvent, StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.spec import stored_spec
from tinkergym.schema.jobs.view import JobView


class JobLeaseStore:
    """Queued jobs, and the leases of running ones: for the scheduler and for pools."""

    _db: Database
    _clock: Callable[[], float]

    def job(self, job_id: str) -> JobView:
        """Return a job of any tenant.

        Raises:
            NotFoundError: The job does not exist.
        """
        with self._db.read() as connection:
            row = job_row(connection, job_id)
        if row is None:
            raise NotFoundError(f"there is no job {job_id!r}")
        return job_view(row)

    def queue_groups(self) -> list[QueueGroup]:
        """Return what the queue consists of, the group with the oldest job first.

        Called several times a second, whatever the length of the queue: only an index is read.
        """
        kinds = jobs.c.model, jobs.c.tenant_id, jobs.c.reason
        oldest = func.min(jobs.c.number).label("oldest")
        with self._db.read() as connection:
            rows = connection.execute(select(*kinds, oldest).where(_QUEUED).group_by(*kinds))
            groups = [QueueGroup(**row._mapping) for row in rows]
        return sorted(groups, key=lambda group: group.oldest)

    def why_queued(self, group: QueueGroup) -> str:
        """Return why the oldest job of a group entered the queue; what it waited for since is left out."""
        reason = ""
        query = select(events.c.body).join(jobs).where(jobs.c.number == group.oldest)
        states = query.where(events.c.body.startswith('{"type":"state"')).order_by(events.c.seq.desc())
        with self._db.read() as connection:
            for body in map(BODY.validate_json, connection.scalars(states)):
                if not (isinstance(body, StateEvent) and body.state is JobState.QUEUED):
                    break
                reason = body.reason
        return reason

    def queued_jobs(self, *, limit: int | None = None, **of: str) -> list[QueuedJob]:
        """Return jobs that wait for a worker, oldest first.

        Args:
            limit: The most to return.
            of: Only those with this `model`, `tenant_id`, `reason` or `job_id`.
        """
        columns = jobs.c.job_id, jobs.c.tenant_id, jobs.c.model, jobs.c.created_at, jobs.c.reason
        with self._db.read() as connection:
            rows = connection.execute(
                select(*columns, jobs.c.other_models)
                .where(_QUEUED, *(jobs.c[name] == value for name, value in of.items()))
                .order_by(jobs.c.number)
                .limit(limit)
            )
            return [
                QueuedJob(
                    job_id=row.job_id,
                    tenant_id=row.tenant_id,
                    model=row.model,
                    created_at=row.created_at,
                    reason=row.reason,
                    other_models=tuple(json.loads(row.other_models)),
                )
                for row in rows
            ]

    def explain_queue(self, job_ids: Collection[str], reason: str) -> None:
        """Record why these jobs are still queued, for their tenants; jobs that left the queue are skipped."""
        now = self._clock()
        with self._db.write() as connection:
            wanted = job_rows(connection).where(jobs.c.job_id.in_(job_ids), _QUEUED)
            rows = connection.execute(wanted).all()
            if not rows:
                return
            # As `enter_state` does, for all together.
            told = [
                {
                    "job_id": row.job_id,
                    "seq": row.last_seq + 1,
                    "time": now,
                    "body": StateEvent(
                        state=JobState.QUEUED, reason=reason, attempt=row.attempt
                    ).model_dump_json(),
                }
                for row in rows
            ]
            connection.execute(events.insert(), told)
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id.in_([row.job_id for row in rows]))
                .values(
                    reason=reason[:MOST_QUEUE_REASON],
                    error=None,
                    last_seq=jobs.c.last_seq + 1,
                    updated_at=now,
                )
            )

    def environments_in_use(self) -> Iterator[EnvironmentRef]:
        """Yield the environments of all unfinished jobs that play episodes.

        They include external models, as references to only their keys. Every spec is read, when the first is
        asked for.
        """
        with self._db.read() as connection:
            specs = connection.scalars(select(jobs.c.spec).where(jobs.c.state.not_in(FINAL_STATES))).all()
        for spec in specs:
            played = stored_spec(spec).played
            if played is not None:
                yield from (*played.own_environments.values(), *_opponents_keys(played))

    def jobs_with_expired_lease(self, now: float) -> list[str]:
        """Return the jobs whose lease has expired."""
        with self._db.read() as connection:
            return list(connection.scalars(select(jobs.c.job_id).where(_expired(now))))

    def acquire(self, job_id: str, worker_id: str, lease_seconds: float, now: float) -> JobLease | None:
        """Take a queued job or one with an expired lease; None if another was faster or it was cancelled.

        The job enters `starting` and its attempt counter grows. `worker_id` is the id of the pool that runs
        it, so the gateway can find it.
        """
        with self._db.write() as connection:
            row = job_row(connection, job_id)
            if row is None or row.cancel_requested or not _free(row, now):
                return None
            lease = JobLease(
                job_id=job_id,
                worker_id=worker_id,
                epoch=row.epoch + 1,
                attempt=row.attempt + 1,
                spec=stored_spec(row.spec),
                tenant_id=row.tenant_id,
                expires_at=now + lease_seconds,
                recorded_steps=row.furthest_step,
            )
            enter_state(
                connection,
                row,
                self._clock(),
                StateEvent(state=JobState.STARTING, attempt=lease.attempt),
                worker_id=worker_id,
                epoch=lease.epoch,
                attempt=lease.attempt,
                lease_expires_at=lease.expires_at,
                counted_at=now,  # its time on a worker counts from here
            )
            return lease

    def renew(self, lease: JobLease, lease_seconds: float, now: float) -> JobLease:
        """Renew the lease. A late renewal succeeds if no other worker has taken the job.

        Raises:
            LeaseLostError: The job ended, was requeued or has another worker.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            renewed = replace(lease, expires_at=now + lease_seconds)
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == lease.job_id)
                .values(lease_expires_at=renewed.expires_at, **counted(row, now))
            )
            return renewed

    def release(
        self, lease: JobLease, reason: str = "its worker stopped", *, state: JobState = JobState.QUEUED
    ) -> None:
        """Return the job to the queue, or to another state that waits.

        If its cancellation was requested, it ends instead. A lease that is already lost is not an error.
        """
        with self._db.write() as connection:
            try:
                row = fenced(connection, lease)
            except LeaseLostError:
                return
            now = self._clock()
            _queue_again_or_end(connection, row, now, reason, state, columns=counted(row, now))

    def park(self, lease: JobLease, reason: str) -> None:
        """Release the job until a client asks for its episodes, see `client_came`; else like `release`."""
        self.release(lease, reason, state=JobState.WAITING_FOR_CLIENT)

    def pause(self, lease: JobLease, reason: str, *, asked: bool) -> None:
        """Release the job until its tenant resumes it; it ends instead if its cancellation was requested.

        Args:
            lease: The job's lease. It is not an error if it is already lost.
            reason: The reason shown to the tenant.
            asked: Whether the tenant requested it. If the request was withdrawn, the job is queued.
        """
        with self._db.write() as connection:
            try:
                row = fenced(connection, lease)
            except LeaseLostError:
                return
            state = JobState.PAUSED
            if asked and row.pause_requested is None:
                state, reason = JobState.QUEUED, "resumed while it was about to pause"
            now = self._clock()
            _queue_again_or_end(connection, row, now, reason, state, columns=counted(row, now))

    def client_came(self, job_id: str) -> None:
        """Queue a job that waits for its client; any other job is unchanged."""
        with self._db.write() as connection:
            row = job_row(connection, job_id)
            if row is not None and row.worker_id is None and row.state == JobState.WAITING_FOR_CLIENT:
                body = StateEvent(
                    state=JobState.QUEUED,
                    reason="its client is back; resumes from the last checkpoint",
                    attempt=row.attempt,
                )
                enter_state(connection, row, self._clock(), body)

    def tenants(self) -> int:
        """Return the number of tenants."""
        with self._db.read() as connection:
            return connection.scalar(select(func.count()).select_from(tenants)) or 0

    def requeue_expired(self, now: float) -> list[str]:
        """Requeue jobs with expired leases; jobs whose cancellation was requested end.

        Returns:
            The requeued jobs.
        """
        if not self.jobs_with_expired_lease(now):  # the usual case needs no write lock
            return []
        queued = []
        with self._db.write() as connection:
            for row in connection.execute(job_rows(connection).where(_expired(now))).all():
                reason = "its lease ran out; resumes from the last checkpoint"
                if _queue_again_or_end(connection, row, self._clock(), reason):
                    queued.append(row.job_id)
        return queued

    def requeue_jobs_of(self, worker_id: str, reason: str) -> list[str]:
        """Requeue the jobs of a dead worker before their leases expire.

        Returns:
            The requeued jobs; jobs whose cancellation was requested end instead.
        """
        queued = []
        with self._db.write() as connection:
            for row in connection.execute(job_rows(connection).where(_held_by(worker_id))).all():
                if _queue_again_or_end(connection, row, self._clock(), reason):
                    queued.append(row.job_id)
        return queued

    def deaths_since_step(self, job_id: str, *reasons: str) -> int:
        """Return how often the job was requeued for one of these reasons since it last made progress.

        Repeating a step after a death is not progress. A policy trained by calls has no steps; its
        checkpoints are numbered by calls.
        """
        deaths = furthest = 0
        with self._db.read() as connection:
            query = select(events.c.body).where(events.c.job_id == job_id).order_by(events.c.seq)
            for body in map(BODY.validate_json, connection.scalars(query)):
                if isinstance(body, StepEvent | CheckpointEvent) and body.step > furthest:
                    deaths, furthest = 0, body.step
                if isinstance(body, StateEvent) and body.state is JobState.QUEUED:
                    deaths += body.reason in reasons
        return deaths

    def held_jobs(self) -> list[HeldJob]:
        """Return the jobs that workers hold now."""
        with self._db.read() as connection:
            rows = connection.execute(
                select(jobs.c.job_id, jobs.c.tenant_id, jobs.c.worker_id, jobs.c.state).where(_held_by(None))
            )
            return [HeldJob(**{**row._mapping, "state": JobState(row.state)}) for row in rows]

    def stop_request(self, job_id: str, now: float) -> StopRequest:
        """Return whether the job should end or pause, because of its tenant or its budget."""
        with self._db.read() as connection:
            row = job_row(connection, job_id)
            return StopRequest() if row is None else stop_request_of(row, now)

    def finish_unleased(
        self, job_id: str, state: JobState, reason: str, error: ErrorView | None = None
    ) -> bool:
        """End a job that no worker holds; return False if a worker holds it or it has already ended."""
        assert state.final
        with self._db.write() as connection:
            now = self._clock()
            row = job_row(connection, job_id)
            if row is None or not _free(row, now):
                return False
            body = StateEvent(state=state, reason=reason, error=error, attempt=row.attempt)
            _finish(connection, row, now, body)
            return True


_QUEUED = jobs.c.state == literal_column("'queued'")
"""Not a parameter: else SQLite would not know that the index `jobs_queued` has these rows."""


def _opponents_keys(spec: PlayedSpec) -> list[EnvironmentRef]:
    """Return the names of the keys of external models, each in the place of a token's name."""
    models = spec.external_models
    return [EnvironmentRef(id="opponent", kwargs={"token": one.api_key}) for one in models]


def _expired(now: float) -> ColumnElement[bool]:
    # A job without a worker only waits for its client.
    return and_(
        jobs.c.state.not_in([*FINAL_STATES, JobState.QUEUED.value]),
        jobs.c.worker_id.is_not(None),
        or_(jobs.c.lease_expires_at.is_(None), jobs.c.lease_expires_at <= now),
    )


def _held_by(worker_id: str | None) -> ColumnElement[bool]:
    held = jobs.c.worker_id.is_not(None) if worker_id is None else jobs.c.worker_id == worker_id
    return and_(jobs.c.state.not_in([*FINAL_STATES, JobState.QUEUED.value]), held)


def _free(row: Row[Any], now: float) -> bool:
    if row.state in FINAL_STATES or row.state == JobState.PAUSED:
        return False
    return row.state == JobState.QUEUED or row.lease_expires_at is None or row.lease_expires_at <= now


def _queue_again_or_end(
    connection: Connection,
    row: Row[Any],
    now: float,
    reason: str,
    state: JobState = JobState.QUEUED,
    *,
    columns: Mapping[str, object] | None = None,
) -> bool:
    """Take a job from its worker, or end it if requested; return whether it is queued again.

    If it should pause, it pauses, no matter why the worker lost it. `columns` change in the same update.
    """
    if row.cancel_requested:  # No worker would take it from the queue.
        body = StateEvent(state=JobState.CANCELLED, reason="cancelled", attempt=row.attempt)
        _finish(connection, row, now, body)
        return False
    if row.pause_requested is not None and state is not JobState.PAUSED:
        state, reason = JobState.PAUSED, row.pause_requested
    body = StateEvent(state=state, reason=reason, attempt=row.attempt)
    # The epoch grows here too: the old worker may be slow rather than dead.
    enter_state(
        connection,
        row,
        now,
        body,
        worker_id=None,
        lease_expires_at=None,
        epoch=row.epoch + 1,
        pause_requested=None,
        **(columns or {}),
    )
    return state is not JobState.PAUSED


def _finish(connection: Connection, row: Row[Any], now: float, body: StateEvent) -> None:
    columns = counted(row, now)
    enter_state(
        connection, row, now, body, worker_id=None, lease_expires_at=None, epoch=row.epoch + 1, **columns
    )
