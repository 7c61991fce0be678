"""A job's budget use, and what its tenant requests while a worker holds it.

Seconds count from heartbeat to heartbeat, so those after a dead worker's last one are not counted, and none
is counted twice. Tokens count when their step is recorded; a repeated step adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, update

from backend.store.tables import jobs
from tinkergym.schema.jobs.parts import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Whether a job that a worker holds should end or pause, by its tenant or for its budget."""

    cancel: bool = False
    pause: str = ""
    """Why it should pause; empty if it should not."""
    asked: bool = False
    """Whether its tenant requested the pause and may withdraw it."""


def held_seconds(row: Row[Any], now: float) -> float:
    """Return the seconds since the last heartbeat, not counting those after the lease's end."""
    if row.counted_at is None or row.lease_expires_at is None:
        return 0.0
    return float(max(0.0, min(now, row.lease_expires_at) - row.counted_at))


def counted(row: Row[Any], now: float) -> dict[str, float]:
    """Return the columns that count a job's time on a worker up to now."""
    return {"used_seconds": row.used_seconds + held_seconds(row, now), "counted_at": now}


def count_tokens(connection: Connection, row: Row[Any], tokens: int) -> None:
    """Add to a job's usage in this transaction."""
    if tokens:
        connection.execute(
            update(jobs).where(jobs.c.job_id == row.job_id).values(used_tokens=row.used_tokens + tokens)
        )


def used_up(row: Row[Any], now: float) -> str:
    """Return which limit of its budget a job has reached; empty if none."""
    if row.budget is None:
        return ""
    budget = Budget.model_validate_json(row.budget)
    return budget.used_up(row.used_seconds + held_seconds(row, now), row.used_tokens)


def stop_request_of(row: Row[Any], now: float) -> StopRequest:
    """Return whether a job should end or pause."""
    if row.cancel_requested:
        return StopRequest(cancel=True)
    if row.pause_requested is not None:
        return StopRequest(pause=row.pause_requested, asked=True)
    why = used_up(row, now)
    return StopRequest(pause=out_of_budget(row.job_id, why)) if why else StopRequest()


def out_of_budget(job_id: str, why: str) -> str:
    """Return the reason for a job that is paused or cannot resume because its budget is used up."""
    return (
        f"its budget is used up: {why}; raise it with job.update(budget=...) or "
        f"`tinkergym jobs update {job_id} --set budget.hours=...` (or budget.tokens), then resume"
    )
