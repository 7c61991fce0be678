"""A job's budget use, what its tenant requests while a worker holds it, and the room for the tenant's files.

Seconds count from heartbeat to heartbeat, so those after a dead worker's last one are not counted, and none
is counted twice. Tokens count when their step is recorded; a repeated step adds nothing.
"""

from __future__ import annotations

import threading
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


_SHARE = 8
"""After listing all files, a process may add new ones up to this fraction of the room that is left before it
lists them again. So up to 8 processes stay within the limit together.
"""


class QuotaRoom:
    """How many more files of each tenant this process may add without listing them all again.

    Thread-safe. Each process that adds files of a kind has one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[tuple[str, int], tuple[int, int]] = {}
        """By tenant and limit: bytes and files."""

    def take(self, tenant_id: str, limit: int, size: int) -> bool:
        """Reserve room for a file; return False if there is not enough."""
        with self._lock:
            size_left, files_left = self._left.get((tenant_id, limit), (0, 0))
            if size > size_left or files_left < 1:
                return False
            self._left[tenant_id, limit] = size_left - size, files_left - 1
            return True

    def seen(self, tenant_id: str, limit: int, *, size_left: int, files_left: int) -> None:
        """Note how much room a listing of all files found."""
        with self._lock:
            self._left[tenant_id, limit] = size_left // _SHARE, files_left // _SHARE
