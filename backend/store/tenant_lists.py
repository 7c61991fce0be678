"""A tenant's jobs in brief: what lists show of each, and what its owner notes about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Row, case, func, or_, select, true, update

from backend.store.database import Database
from backend.store.job_rows import FINAL_STATES
from backend.store.tables import events, job_policies, jobs, policies
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.summaries import (
    MOST_SORTED,
    JobLabels,
    JobQuery,
    JobSummaries,
    JobSummary,
    ModelUsage,
)

_NEWEST_EVENTS = 40
_ROWS_AT_ONCE = 250
_STEP, _WARNING, _EVALUATION = '{"type":"step"', '{"type":"warning"', '{"type":"evaluation"'
"""The beginnings of bodies of events, which have the field `type` first."""


class TenantLists:
    """The part of a tenant's store that lists jobs in brief."""

    _db: Database
    tenant_id: str

    def _own(self, connection: Connection, job_id: str) -> Row[Any]:
        raise NotImplementedError

    def summaries(self, query: JobQuery) -> JobSummaries:
        """Return jobs in brief.

        Raises:
            NotFoundError: `query.before` is not a job of this tenant.
        """
        with self._db.read() as connection:
            older = None if not query.before else self._own(connection, query.before).number
            by_age = query.sort == "newest"
            most = query.limit if by_age else MOST_SORTED
            # One more than is shown tells whether there are older ones.
            numbers = list(islice(self._matching(connection, query, older), most + 1))
            found = [*_summaries(connection, numbers[:most])]
        if not by_age:
            found.sort(key=_ORDERS[query.sort])
        return JobSummaries(jobs=found[: query.limit], has_older=len(numbers) > min(most, query.limit))

    def _matching(self, connection: Connection, query: JobQuery, older: int | None) -> Iterator[int]:
        """Yield the numbers of the jobs that a query asks for, newest first."""
        rows = select(jobs).where(jobs.c.tenant_id == self.tenant_id).order_by(jobs.c.number.desc())
        if query.state:
            rows = rows.where(jobs.c.state.in_([one.value for one in query.state]))
        if query.model:
            rows = rows.where(jobs.c.model.icontains(query.model, autoescape=True))
        while page := connection.execute(
            rows.where(true() if older is None else jobs.c.number < older).limit(_ROWS_AT_ONCE)
        ).all():
            yield from (row.number for row in page if _matches(query, row))
            older = page[-1].number

    def newest_policies(self, jobs_at_most: int) -> list[tuple[PolicyRef, str, float]]:
        """Return the policies of the newest jobs, with base model and when the job was created, newest first.

        The only policy of a job is named by the job alone.
        """
        mine = select(jobs.c.number).where(jobs.c.tenant_id == self.tenant_id)
        query = (
            select(jobs.c.job_id, jobs.c.created_at, job_policies.c.agent, policies.c.model)
            .join(job_policies, job_policies.c.job_id == jobs.c.job_id)
            .join(policies, policies.c.policy_id == job_policies.c.policy_id)
            .where(jobs.c.number.in_(mine.order_by(jobs.c.number.desc()).limit(jobs_at_most)))
            .order_by(jobs.c.number.desc(), job_policies.c.agent)
        )
        with self._db.read() as connection:
            rows = connection.execute(query).all()
        of_job = Counter(row.job_id for row in rows)
        return [
            (
                PolicyRef(owner=row.job_id, agent=row.agent * (of_job[row.job_id] > 1)),
                row.model,
                row.created_at,
            )
            for row in rows
        ]

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

    def bodies_after(self, job_id: str, seq: int, limit: int) -> Sequence[tuple[int, float, str]]:
        """Return number, time and JSON of the job's steps, warnings and evaluations after an event, in order.

        Raises:
            NotFoundError: The job does not exist or is another tenant's.
        """
        with self._db.read() as connection:
            self._own(connection, job_id)
            query = (
                select(events.c.seq, events.c.time, events.c.body)
                .where(events.c.job_id == job_id, events.c.seq > seq)
                .where(or_(*(events.c.body.startswith(one) for one in (_STEP, _WARNING, _EVALUATION))))
                .order_by(events.c.seq)
                .limit(limit)
            )
            return [(seq, time, body) for seq, time, body in connection.execute(query)]


def _matches(query: JobQuery, row: Row[Any]) -> bool:
    """Whether a job's labels and settings are as asked."""
    labels = from_json(row.labels)
    if labels.get("archived") and not query.archived:
        return False
    if not (query.search or query.name or query.environment or query.tag):
        return True
    spec, tags = from_json(row.spec), labels.get("tags", [])
    name, environment = _name(spec, labels), _environment(spec)
    text = " ".join([name, row.job_id, spec.get("kind", ""), row.model, environment, row.state, *tags])
    return (
        query.name.casefold() in name.casefold()
        and query.environment.casefold() in environment.casefold()
        and set(query.tag) <= set(tags)
        and all(word in text.casefold() for word in query.search.casefold().split())
    )


def _name(spec: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    return str(labels.get("name") or spec.get("name", ""))


def _environment(spec: Mapping[str, Any]) -> str:
    return str((spec.get("environment") or {}).get("id", ""))


_ORDERS: dict[str, Callable[[JobSummary], Any]] = {
    "changed": lambda one: -one.updated_at,
    "reward": lambda one: math.inf if one.reward_mean is None else -one.reward_mean,
    "duration": lambda one: -one.used_seconds,
    "progress": lambda one: -one.step / max(1, one.steps),
    "name": lambda one: (one.name or one.job_id).casefold(),
}


def _summaries(connection: Connection, numbers: Sequence[int]) -> Iterator[JobSummary]:
    """Yield jobs in brief, in this order."""
    of_job = select(events.c.body).where(events.c.job_id == jobs.c.job_id)
    steps = of_job.where(events.c.body.startswith(_STEP)).order_by(events.c.seq.desc()).limit(1)
    newest_step = steps.correlate(jobs).scalar_subquery()
    warned = (
        select(jobs.c.number, events.c.body)
        .join(events, (events.c.job_id == jobs.c.job_id) & (events.c.seq > jobs.c.last_seq - _NEWEST_EVENTS))
        .where(events.c.body.startswith(_WARNING))
        .order_by(events.c.seq.desc())
    )
    for start in range(0, len(numbers), _ROWS_AT_ONCE):
        some = numbers[start : start + _ROWS_AT_ONCE]
        warnings: dict[int, dict[str, None]] = {}
        for number, body in connection.execute(warned.where(jobs.c.number.in_(some))):
            warnings.setdefault(number, {})[from_json(body)["name"]] = None
        query = select(jobs, newest_step.label("newest_step")).where(jobs.c.number.in_(some))
        rows = {row.number: row for row in connection.execute(query)}
        yield from (_summary(rows[number], list(warnings.get(number, ()))) for number in some)


def _summary(row: Row[Any], warnings: list[str]) -> JobSummary:
    # Not as a `JobSpec` or a `StepEvent`: checking hundreds takes a second.
    spec = from_json(row.spec)
    newest = None if row.newest_step is None else from_json(row.newest_step)
    labels = JobLabels.model_validate_json(row.labels)
    return JobSummary(
        job_id=row.job_id,
        name=labels.name or spec.get("name", ""),
        kind=spec.get("kind", ""),
        model=row.model,
        environment=_environment(spec),
        state=JobState(row.state),
        reason=row.reason,
        error="" if row.error is None else from_json(row.error).get("message", ""),
        step=row.step,
        steps=spec.get("steps", 0) if newest is None else newest["steps"],
        created_at=row.created_at,
        updated_at=row.updated_at,
        used_seconds=row.used_seconds,
        used_tokens=row.used_tokens,
        last_seq=row.last_seq,
        reward_mean=None if newest is None else newest["reward_mean"],
        loss=None if newest is None else newest["loss"],
        seconds_left=None if newest is None or JobState(row.state).final else newest["seconds_left"],
        warnings=warnings,
        labels=labels,
    )
