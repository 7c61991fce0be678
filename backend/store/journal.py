"""A job loop's record of its progress: states, events, steps. Every write needs the job's lease."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sqlalchemy import Connection, select, update

from backend.store.database import Database
from backend.store.job_rows import BODY, NO_AGENT, UPDATES, JobLease, append, enter_state, fenced, job_row
from backend.store.policies import record_version
from backend.store.stored_facts import Fact, write_facts
from backend.store.tables import events, jobs
from backend.store.usage import count_tokens, counted
from tinkergym.schema.events import (
    EpisodeEvent,
    ErrorView,
    EvaluationEvent,
    Event,
    EventBody,
    JobState,
    SettingsUpdate,
    StateEvent,
    StepEvent,
    UpdateEvent,
    WarningEvent,
)

_SECONDS_PER_HOUR = 3600.0


def evaluation_events(connection: Connection, job_id: str) -> list[EvaluationEvent]:
    """Return the evaluations that a job recorded, in order."""
    query = (
        select(events.c.body)
        .where(events.c.job_id == job_id, events.c.body.like('%"type":"evaluation"%'))
        .order_by(events.c.seq)
    )
    found = map(BODY.validate_json, connection.scalars(query))
    # A transcript may contain the same text.
    return [body for body in found if isinstance(body, EvaluationEvent)]


def _marked(body: EventBody, lease: JobLease) -> EventBody:
    """Return an event of a step, marked if an earlier attempt recorded that step."""
    if isinstance(body, StepEvent | EpisodeEvent | WarningEvent) and 0 < body.step <= lease.recorded_steps:
        return body.model_copy(update={"repeated": True})
    return body


class JournalStore:
    """The store's methods for recording progress."""

    _db: Database
    _clock: Callable[[], float]

    def evaluations(self, job_id: str) -> list[EvaluationEvent]:
        """Return the evaluations that a job recorded, in order."""
        with self._db.read() as connection:
            return evaluation_events(connection, job_id)

    def warned_steps(self, job_id: str, name: str) -> set[int]:
        """Return the steps about which a job has warned with a name."""
        query = select(events.c.body).where(
            events.c.job_id == job_id, events.c.body.like(f'%"name":"{name}"%')
        )
        with self._db.read() as connection:
            # The text only narrows down what is parsed: messages may contain it, too.
            found = list(map(BODY.validate_json, connection.scalars(query)))
        return {body.step for body in found if isinstance(body, WarningEvent) and body.name == name}

    def set_state(
        self, lease: JobLease, state: JobState, reason: str = "", error: ErrorView | None = None
    ) -> Event:
        """Move the job into a state and log it, in one transaction; a final state also ends the lease.

        Raises:
            LeaseLostError: Another worker has the job, or it ended, so a job ends exactly once.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            body = StateEvent(state=state, reason=reason, error=error, attempt=lease.attempt)
            now = self._clock()
            if state.final:
                return enter_state(
                    connection, row, now, body, worker_id=None, lease_expires_at=None, **counted(row, now)
                )
            return enter_state(connection, row, now, body)

    def append_event(self, lease: JobLease, body: EventBody) -> Event:
        """Log an event.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            if isinstance(body, EvaluationEvent):
                count_tokens(connection, row, body.sampled_tokens)
            return append(connection, lease.job_id, row.last_seq, self._clock(), _marked(body, lease))

    def append_events(self, lease: JobLease, bodies: list[EventBody]) -> list[Event]:
        """Log several events in one transaction.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            seq = fenced(connection, lease).last_seq
            now = self._clock()
            return [
                append(connection, lease.job_id, seq + offset, now, _marked(body, lease))
                for offset, body in enumerate(bodies)
            ]

    def record_step(
        self,
        lease: JobLease,
        event: StepEvent,
        weights_sha256: str | Mapping[str, str],
        *,
        facts: Iterable[Fact] = (),
    ) -> Event:
        """Record a training step: the job's counters, the new version's hash, the event, and facts.

        The event also includes the job's usage so far as `used/hours` and `used/tokens`.

        Args:
            lease: The job's lease.
            event: The step's event.
            weights_sha256: The hash for its policy, or hashes by agent.
            facts: Facts since the last step.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.write() as connection:
            row = fenced(connection, lease)
            write_facts(connection, lease.job_id, facts)
            hashes = {NO_AGENT: weights_sha256} if isinstance(weights_sha256, str) else weights_sha256
            for agent, sha256 in hashes.items():
                record_version(
                    connection,
                    lease.job_id,
                    version=event.policy_version,
                    train_step=event.step,
                    weights_sha256=sha256,
                    agent=agent,
                )
            # A step repeated after a kill has already been counted.
            is_new = event.step > row.furthest_step
            tokens = row.used_tokens + (event.sampled_tokens + event.trained_tokens if is_new else 0)
            now = self._clock()
            columns = counted(row, now)
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == lease.job_id)
                .values(
                    step=event.step,
                    policy_version=event.policy_version,
                    furthest_step=max(event.step, row.furthest_step),
                    used_tokens=tokens,
                    **columns,
                )
            )
            used = {"used/hours": columns["used_seconds"] / _SECONDS_PER_HOUR, "used/tokens": float(tokens)}
            event = event.model_copy(update={"metrics": {**event.metrics, **used}})
            return append(connection, lease.job_id, row.last_seq, now, _marked(event, lease))

    def take_updates(self, lease: JobLease, step: int) -> list[SettingsUpdate]:
        """Return the job's changed settings; pending changes take effect from this step on.

        A previously recorded step is repeated unchanged, so no change begins there.

        Raises:
            LeaseLostError: Another worker has the job, or it ended.
        """
        with self._db.read() as connection:  # the usual case needs no write lock
            row = job_row(connection, lease.job_id)
            known = UPDATES.validate_json(row.updates if row is not None else "[]")
            if row is None or step <= row.furthest_step or all(one.from_step is not None for one in known):
                return known
        with self._db.write() as connection:
            row = fenced(connection, lease)
            seq, taken = row.last_seq, []
            # Read again, now with the row locked: the tenant may have changed more.
            for one in UPDATES.validate_json(row.updates):
                if one.from_step is None:
                    body = UpdateEvent(changes=one.changes, from_step=step)
                    seq = append(connection, lease.job_id, seq, self._clock(), body).seq
                    taken.append(one.model_copy(update={"from_step": step}))
                else:
                    taken.append(one)
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == lease.job_id)
                .values(updates=UPDATES.dump_json(taken).decode())
            )
            return taken

    def episodes_failed(self, job_id: str) -> tuple[int, int]:
        """Return how many episodes of the job's recorded steps failed, and how many there were."""
        counts: dict[int, tuple[int, int]] = {}
        with self._db.read() as connection:
            query = select(events.c.body).where(events.c.job_id == job_id).order_by(events.c.seq)
            for body in map(BODY.validate_json, connection.scalars(query)):
                if isinstance(body, StepEvent):
                    # For a step repeated after a resume, the last run counts.
                    counts[body.step] = body.failed_episodes, body.episodes
        return sum(failed for failed, _ in counts.values()), sum(total for _, total in counts.values())
