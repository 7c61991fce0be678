"""A tenant's jobs in brief: what lists show of each, and what its owner notes about it."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Row, case, func, select, update

from backend.store.database import Database
from backend.store.job_rows import BODY, FINAL_STATES
from backend.store.tables import events, jobs
from tinkergym.schema.events import JobState, StepEvent, WarningEvent
from tinkergym.schema.summaries import JobLabels, JobSummary, ModelUsage

_NEWEST_EVENTS = 40
_STEP, _WARNING = '{"type":"step"', '{"type":"warning"'
"""The beginnings of bodies of events, which have the field `type` first."""


class TenantLists:
    """The part of a tenant's store that lists jobs in brief."""

    _db: Database
    tenant_id: str

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        raise NotImplementedError

    def summaries(self, limit: int = 50, before: str = "") -> list[JobSummary]:
        """Return jobs in brief, newest first; `before` is the last job id of the previous page.

        Raises:
            NotFoundError: `before` is not a job of this tenant.
        """
        with self._db.read() as connection:
            query = select(jobs).where(jobs.c.tenant_id == self.tenant_id)
            if before:
                query = query.where(jobs.c.number < self._own(connection, before).number)
            rows = connection.execute(query.order_by(jobs.c.number.desc()).limit(limit)).all()
            return [_summary(connection, row) for row in rows]

    def usage(self, *, of_all: bool = False) -> list[ModelUsage]:
        """Return what jobs have used, by model; with `of_all` those of every tenant."""
        query = select(
            jobs.c.tenant_id,
            jobs.c.model,
            func.count().label("jobs"),
            func.sum(case((jobs.c.state.in_(FINAL_STATES), 0), else_=1)).label("unfinished"),
            func.sum(jobs.c.used_seconds).label("used_seconds"),
            func.sum(jobs.c.used_tokens).label("used_tokens"),
        ).group_by(jobs.c.tenant_id, jobs.c.model)
        if not of_all:
            query = query.where(jobs.c.tenant_id == self.tenant_id)
        with self._db.read() as connection:
            rows = connection.execute(query.order_by(jobs.c.tenant_id, jobs.c.model)).mappings()
            return [ModelUsage.model_validate(dict(row)) for row in rows]

    def labels(self, job_id: str) -> JobLabels:
        """Return what the owner noted about a job.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            return JobLabels.model_validate_json(self._own(connection, job_id).labels)

    def set_labels(self, job_id: str, labels: JobLabels) -> None:
        """Replace what the owner noted about a job.

        Raises:
            NotFoundError: It does not exist or is another tenant's.
        """
        with self._db.write() as connection:
            self._own(connection, job_id)
            written = labels.model_dump_json()
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(labels=written))

    def bodies_after(self, job_id: str, seq: int, limit: int) -> list[tuple[int, float, str]]:
        """Return number, time and JSON of the job's steps and warnings after an event, in order.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            query = (
                select(events.c.seq, events.c.time, events.c.body)
                .where(events.c.job_id == job_id, events.c.seq > seq)
                .where(events.c.body.startswith(_STEP) | events.c.body.startswith(_WARNING))
                .order_by(events.c.seq)
                .limit(limit)
            )
            return [(row.seq, row.time, row.body) for row in connection.execute(query)]


def _summary(connection: Connection, row: Row[Any]) -> JobSummary:
    # Not as a `JobSpec`: checking hundreds takes a second.
    spec = from_json(row.spec)
    labels = JobLabels.model_validate_json(row.labels)
    newest, warnings = _newest(connection, row)
    return JobSummary(
        job_id=row.job_id,
        name=labels.name or spec.get("name", ""),
        kind=spec.get("kind", ""),
        model=row.model,
        environment=(spec.get("environment") or {}).get("id", ""),
        state=JobState(row.state),
        reason=row.reason,
        error="" if row.error is None else json.loads(row.error).get("message", ""),
        step=row.step,
        steps=spec.get("steps", 0) if newest is None else newest.steps,
        created_at=row.created_at,
        updated_at=row.updated_at,
        used_seconds=row.used_seconds,
        used_tokens=row.used_tokens,
        last_seq=row.last_seq,
        reward_mean=None if newest is None else newest.reward_mean,
        loss=None if newest is None else newest.loss,
        seconds_left=None if newest is None or JobState(row.state).final else newest.seconds_left,
        warnings=warnings,
        labels=labels,
    )


def _newest(connection: Connection, row: Row[Any]) -> tuple[StepEvent | None, list[str]]:
    """Return the newest step, and the names of warnings among the newest events."""
    query = select(events.c.body).where(events.c.job_id == row.job_id)
    bodies = connection.scalars(
        query.where(events.c.seq > row.last_seq - _NEWEST_EVENTS).order_by(events.c.seq.desc())
    ).all()
    steps = [body for body in bodies if body.startswith(_STEP)]
    if not steps and row.step:
        earlier = query.where(events.c.body.startswith(_STEP)).order_by(events.c.seq.desc()).limit(1)
        steps = list(connection.scalars(earlier))
    step = BODY.validate_json(steps[0]) if steps else None
    warnings = [BODY.validate_json(body) for body in bodies if body.startswith(_WARNING)]
    names = [one.name for one in warnings if isinstance(one, WarningEvent)]
    return step if isinstance(step, StepEvent) else None, list(dict.fromkeys(names))
