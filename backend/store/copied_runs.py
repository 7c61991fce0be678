"""Runs that another service recorded, written into a database of one's own to be looked at."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from backend.store.database import Database
from backend.store.kept_episodes import KeptEpisodes
from backend.store.stored_facts import Fact, write_facts
from backend.store.tables import events as events_table
from backend.store.tables import jobs
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.certificate import StepLedger
from tinkergym.schema.events import Event
from tinkergym.schema.jobs.view import INSTALLED_PACKS, JobView


def add_copied_run(
    database: Database, tenant_id: str, job: JobView, log: Iterable[Event], ledgers: Iterable[StepLedger]
) -> None:
    """Write a job, its event log and the outcomes of its episodes. No worker will ever run it.

    Raises:
        InvalidRequestError: The log is another job's, or out of order.
    """
    with database.write() as connection:
        connection.execute(
            jobs.insert().values(
                job_id=job.job_id,
                tenant_id=tenant_id,
                spec=job.spec.model_dump_json(),
                model=job.spec.model,
                packs="{}",
                client_packs=INSTALLED_PACKS.dump_json(job.client_packs).decode(),
                state=job.state.value,
                reason=job.reason,
                error=None if job.error is None else job.error.model_dump_json(),
                step=job.step,
                policy_version=job.policy_version,
                attempt=job.attempt,
                used_seconds=job.used_seconds,
                used_tokens=job.used_tokens,
                last_seq=job.last_seq,
                created_at=job.created_at,
                updated_at=job.updated_at,
            )
        )
        rows = [
            {"job_id": job.job_id, "seq": one.seq, "time": one.time, "body": one.body.model_dump_json()}
            for one in _in_order(job.job_id, log)
        ]
        if rows:
            connection.execute(events_table.insert(), rows)
        facts = (Fact(kind="ledger", number=one.step, attempt=0, body=one) for one in ledgers)
        write_facts(connection, job.job_id, facts)


def add_copied_episodes(kept: KeptEpisodes, step: int, bodies: Iterable[bytes]) -> None:
    """Write the episodes of a step, each as JSON."""
    kept.write(step, [zlib.compress(body, 1) for body in bodies], epoch=1)


def _in_order(job_id: str, log: Iterable[Event]) -> Iterator[Event]:
    last = 0
    for event in log:
        if event.job_id != job_id or event.seq <= last:
            reason = f"event {event.seq} of {event.job_id} does not belong after event {last} of {job_id}"
            raise InvalidRequestError(reason, hint="the file is damaged; copy it again", field="path")
        last = event.seq
        yield event
