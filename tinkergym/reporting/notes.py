"""Notes: what trackers show of a job besides numbers, such as completions and events.

Each comes from an event in the job's log and is identified by its number there, so a tracker can tell which
ones it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.schema.events import (
    EpisodeEvent,
    EvaluationEvent,
    Event,
    JobState,
    StateEvent,
    StepEvent,
    UpdateEvent,
)

COLUMNS = ("step", "return", "stop_reason", "prompt", "completion", "agent", "episode")
"""Columns of a table of completions."""

_SHOWN_STATES = {
    JobState.PAUSED: "paused",
    JobState.WAITING_FOR_CLIENT: "waits for its client",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
_MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to read about a job."""

    seq: int
    """Number in the job's log; increasing."""
    step: int
    """The training step that it describes, or the last completed step when it happened."""
    time: float
    """Seconds since 1970, by the service's clock."""
    kind: str
    """`completion`, `evaluation`, `update`, `paused`, `resumed` or `state`."""
    text: str
    """A one-line description, or the conversation of a completion."""
    values: dict[str, float] = field(default_factory=dict)
    """Numbers of an evaluation: `eval/NAME/mean`, `.../low`, `.../high`, and the environment's own."""
    row: dict[str, str | float] = field(default_factory=dict)
    """For a completion, by `COLUMNS`."""


class Notes:
    """Extracts notes from a job's log, passed from its first event on."""

    def __init__(self) -> None:
        self._step = 0
        self._paused = False
        self._shown: set[tuple[int, str, str]] = set()

    def of(self, event: Event) -> Iterator[Note]:
        """Yield the note of the next event, if it has one."""
        body = event.body
        match body:
            case StepEvent():
                self._step = max(self._step, body.step)
            case EpisodeEvent():
                key = (body.step, body.episode_id, body.agent)
                # A resumed job shows the episodes of repeated steps again.
                if key not in self._shown:
                    self._shown.add(key)
                    yield _completion(event, body)
            case EvaluationEvent():
                yield _evaluation(event, body)
            case UpdateEvent():
                yield self._note(event, "update", _update_text(body))
            case StateEvent():
                yield from self._state(event, body)
            case _:
                pass

    def _state(self, event: Event, body: StateEvent) -> Iterator[Note]:
        reason = f": {body.reason}" if body.reason else ""
        if self._paused and body.state is JobState.RUNNING:
            self._paused = False
            yield self._note(event, "resumed", "resumed")
        elif body.state in _SHOWN_STATES:
            self._paused = body.state is JobState.PAUSED
            kind = "paused" if self._paused else "state"
            yield self._note(event, kind, f"{_SHOWN_STATES[body.state]}{reason}")

    def _note(self, event: Event, kind: str, text: str) -> Note:
        return Note(seq=event.seq, step=self._step, time=event.time, kind=kind, text=text[:_MOST_CHARACTERS])


def _completion(event: Event, body: EpisodeEvent) -> Note:
    said = [text for role, text in body.transcript if role == "assistant"]
    place = next((n for n, (role, _) in enumerate(body.transcript) if role == "assistant"), 0)
    shown = "\n\n".join(text for _, text in body.transcript[:place])
    # For several turns the conversation after the first prompt, to make the answers understandable.
    rest = (
        said[0]
        if len(said) == 1
        else "\n\n".join(f"[{role}] {text}" for role, text in body.transcript[place:])
    )
    row: dict[str, str | float] = {
        "step": body.step,
        "return": body.episode_return,
        "stop_reason": body.stop_reason,
        "prompt": shown[:_MOST_CHARACTERS],
        "completion": rest[:_MOST_CHARACTERS] if said else "",
        "agent": body.agent,
        "episode": body.episode_id,
    }
    head = f"return {body.episode_return:g} ({body.stop_reason})"
    text = f"{head}\n\n{row['prompt']}\n\n---\n\n{row['completion']}"
    return Note(seq=event.seq, step=body.step, time=event.time, kind="completion", text=text, row=row)


def _evaluation(event: Event, body: EvaluationEvent) -> Note:
    name = f"eval/{body.name}"
    found = {"mean": body.mean, "low": body.low, "high": body.high, **body.metrics}
    values = {f"{name}/{key}": float(value) for key, value in found.items() if value is not None}
    mean = "no episode completed" if body.mean is None else f"mean return {body.mean:.4g}"
    interval = "" if body.low is None else f" ({body.low:.4g} to {body.high:.4g})"
    best = ", the best so far" if body.best else ""
    best += f", {body.overlap:.0%} of whose tasks are trained on" if body.overlap else ""
    best += ", tasks drawn by seed" if body.drawn else ""
    text = f"{body.name} after step {body.step}: {mean}{interval} over {body.episodes} episodes{best}"
    return Note(seq=event.seq, step=body.step, time=event.time, kind="evaluation", text=text, values=values)


def _update_text(body: UpdateEvent) -> str:
    changes = ", ".join(f"{change.name} {change.old!r} -> {change.new!r}" for change in body.changes)
    return changes if body.from_step is None else f"from step {body.from_step} on: {changes}"


class WaitingNotes:
    """Notes that wait for the next point, for trackers that accept each step's row once."""

    SEQ = "notes/seq"
    """The key in a row for the number of the last note before it."""

    def __init__(self, table: Callable[[Sequence[str], list[list[Any]]], Any]) -> None:
        """Start without notes.

        Args:
            table: Creates the tracker's table from columns and rows.
        """
        self._table = table
        self._notes: list[Note] = []

    def add(self, note: Note) -> None:
        """Keep a note for the next row."""
        self._notes.append(note)

    def taken(self) -> dict[str, Any]:
        """Return a row's values for the waiting notes, and clear them; empty if there are none."""
        notes, self._notes = self._notes, []
        if not notes:
            return {}
        found: dict[str, Any] = {self.SEQ: notes[-1].seq}
        for note in notes:
            found |= note.values
            if note.values:
                found["eval/step"] = note.step
        completions = [[note.row[name] for name in COLUMNS] for note in notes if note.row]
        others = [[note.step, note.kind, note.text] for note in notes if not note.row]
        if completions:
            found["completions"] = self._table(COLUMNS, completions)
        if others:
            found["notes"] = self._table(("step", "kind", "text"), others)
        return found
