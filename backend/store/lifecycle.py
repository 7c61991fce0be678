"""A tenant's requests for an unfinished job: pause, resume, or change settings.

Each is one change of the job's row, in the caller's transaction. A worker that holds the job learns of it
with its next heartbeat; without a worker, the request takes effect at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, update

from backend.store.job_rows import UPDATES, append, enter_state
from backend.store.tables import jobs
from backend.store.usage import out_of_budget, used_up
from tinkergym.errors import ConflictError
from tinkergym.schema.events import MOST_UPDATES, JobState, SettingsUpdate, StateEvent, UpdateEvent
from tinkergym.schema.jobs.parts import Budget
from tinkergym.schema.jobs.spec import stored_spec
from tinkergym.schema.steering import changes_to, settings_now


def pause(connection: Connection, row: Row[Any], now: float) -> None:
    """Pause a job, at once or by its worker; a paused job is unchanged.

    Raises:
        ConflictError: It has ended.
    """
    _refuse_ended(row, "be paused")
    reason = f"paused on request; `tinkergym jobs resume {row.job_id}` or job.resume() continues it"
    if row.state == JobState.PAUSED:
        return
    if row.worker_id is None:
        body = StateEvent(state=JobState.PAUSED, reason=reason, attempt=row.attempt)
        # If a worker is told to take it at this moment, it is refused a paused job.
        enter_state(connection, row, now, body)
    elif row.pause_requested is None:
        _set(connection, row, pause_requested=reason)


def resume(connection: Connection, row: Row[Any], now: float) -> None:
    """Queue a paused job, or withdraw a pause request; any other job is unchanged.

    Raises:
        ConflictError: It has ended, or its budget is used up.
    """
    _refuse_ended(row, "be resumed")
    if row.state != JobState.PAUSED:
        if row.pause_requested is not None:
            _set(connection, row, pause_requested=None)
        return
    why = used_up(row, now)
    if why:
        raise ConflictError(
            f"{row.job_id} cannot be resumed: {out_of_budget(row.job_id, why)}", field="budget"
        )
    from_where = "resumes from the last checkpoint" if row.attempt else "has not started yet"
    body = StateEvent(state=JobState.QUEUED, reason=f"resumed on request; {from_where}", attempt=row.attempt)
    enter_state(connection, row, now, body, pause_requested=None)


def change_settings(connection: Connection, row: Row[Any], now: float, settings: Mapping[str, Any]) -> None:
    """Change settings of a job: from its next training step on, budgets at once.

    Unchanged values do not count as changes.

    Raises:
        ConflictError: It has ended, or was changed too often.
        InvalidRequestError: A setting cannot be changed, or the value is not allowed.
    """
    _refuse_ended(row, "be changed")
    known = UPDATES.validate_json(row.updates)
    changes = changes_to(settings_now(stored_spec(row.spec), known), settings)
    if not changes:
        return
    next_step = row.furthest_step + 1
    of_budget = [change for change in changes if change.name == "budget"]
    others = [change for change in changes if change.name != "budget"]
    columns: dict[str, object] = {}
    added: list[SettingsUpdate] = []
    if of_budget:
        added.append(SettingsUpdate(changes=of_budget, from_step=next_step))
        new = of_budget[0].new
        columns["budget"] = None if new is None else Budget.model_validate(new).model_dump_json()
    if others:
        # Only the worker knows which step it is training now.
        held = row.worker_id is not None
        added.append(SettingsUpdate(changes=others, from_step=None if held else next_step))
    if len(known) + len(added) > MOST_UPDATES:
        raise ConflictError(
            f"the settings of {row.job_id} were changed {len(known)} times; {MOST_UPDATES} changes are "
            f"allowed",
            hint="start another job with initial_policy to continue from its newest version",
        )
    seq = row.last_seq
    for one in added:
        if one.from_step is not None:
            body = UpdateEvent(changes=one.changes, from_step=one.from_step)
            seq = append(connection, row.job_id, seq, now, body).seq
    _set(connection, row, updates=UPDATES.dump_json([*known, *added]).decode(), **columns)


def _refuse_ended(row: Row[Any], what: str) -> None:
    if JobState(row.state).final:
        raise ConflictError(
            f"{row.job_id} has ended ({row.state}) and cannot {what}",
            hint="start another job with initial_policy to continue from its newest version",
        )


def _set(connection: Connection, row: Row[Any], **columns: object) -> None:
    connection.execute(update(jobs).where(jobs.c.job_id == row.job_id).values(**columns))
