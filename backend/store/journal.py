"""What a job's loop writes down as it goes: states, events, steps, checkpoints. All of it under its lease."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.sqlite import insert

from backend.store.database import Database
from backend.store.records import BODY, JobLease, append, enter_state, fenced
from backend.store.tables import checkpoints, events, jobs, versions
from backend.store.tenant import checkpoint_views
from tinkergym.wire import CheckpointView, ErrorView, Event, EventBody, JobState, StateEvent, StepEvent


class JournalStore:
    """The part of the service's store that records progress."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db = database
        self._clock = clock

    def set_state(
        self, lease: JobLease, state: JobState, reason: str = "", error: ErrorView | None = None
    ) -> Event:
        """Move the job into a state and log it, in one transaction; a final state also ends the lease.

        Raises:
            LeaseLostError: Another worker has the job, or it ended: so a job ends exactly once.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            body = StateEvent(state=state, reason=reason, error=error, attempt=lease.attempt)
            if state.final:
                return enter_state(
                    connection, row, self._clock(), body, worker_id=None, lease_expires_at=None
                )
            return enter_state(connection, row, self._clock(), body)

    def append_event(self, lease: JobLease, body: EventBody) -> Event:
        """Log an event.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            return append(connection, lease.job_id, row.last_seq, self._clock(), body)

    def append_events(self, lease: JobLease, bodies: list[EventBody]) -> list[Event]:
        """Log several events in one transaction.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            seq = fenced(connection, lease).last_seq
            now = self._clock()
            return [
                append(connection, lease.job_id, seq + offset, now, body)
                for offset, body in enumerate(bodies)
            ]

    def record_step(self, lease: JobLease, event: StepEvent, weights_sha256: str) -> Event:
        """Record a train step: the job's counters, the hash of the version it made, and the event.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            hashed = insert(versions).values(
                job_id=lease.job_id, version=event.policy_version, weights_sha256=weights_sha256
            )
            # A step that is done again after a resume counts as it was done last.
            connection.execute(
                hashed.on_conflict_do_update(
                    index_elements=["job_id", "version"], set_={"weights_sha256": weights_sha256}
                )
            )
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == lease.job_id)
                .values(step=event.step, policy_version=event.policy_version)
            )
            return append(connection, lease.job_id, row.last_seq, self._clock(), event)

    def episodes_failed(self, job_id: str) -> tuple[int, int]:
        """Return how many episodes of the job's recorded steps failed, and how many there were."""
        counts: dict[int, tuple[int, int]] = {}
        with self._db.read() as connection:
            query = select(events.c.body).where(events.c.job_id == job_id).order_by(events.c.seq)
            for body in map(BODY.validate_json, connection.scalars(query)):
                if isinstance(body, StepEvent):
                    # A step that is done again after a resume counts as it was done last.
                    counts[body.step] = body.failed_episodes, body.episodes
        return sum(failed for failed, _ in counts.values()), sum(total for _, total in counts.values())

    def version_sha256(self, job_id: str, version: int) -> str | None:
        """Return the hash that was recorded for a policy version."""
        with self._db.read() as connection:
            return connection.scalar(
                select(versions.c.weights_sha256).where(
                    versions.c.job_id == job_id, versions.c.version == version
                )
            )

    def add_checkpoint(self, lease: JobLease, view: CheckpointView) -> None:
        """Make a checkpoint known; one of the same step is replaced.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            fenced(connection, lease)
            written = view.model_dump_json()
            connection.execute(
                insert(checkpoints)
                .values(job_id=lease.job_id, step=view.step, view=written)
                .on_conflict_do_update(index_elements=["job_id", "step"], set_={"view": written})
            )

    def remove_checkpoint(self, lease: JobLease, step: int) -> None:
        """Forget a checkpoint; its files are the caller's to delete, after this.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            fenced(connection, lease)
            connection.execute(
                delete(checkpoints).where(checkpoints.c.job_id == lease.job_id, checkpoints.c.step == step)
            )

    def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """Return the job's checkpoints, oldest first."""
        with self._db.read() as connection:
            return checkpoint_views(connection, job_id)
