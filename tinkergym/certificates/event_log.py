"""The log of a bundle, in one pass: what later checks need of it, and whether it is the recorded one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field

from pydantic import ValidationError

from tinkergym.certificates.archive import BundleFiles
from tinkergym.certificates.bundle import EVENT_HASHES, EVENTS
from tinkergym.schema.certificate import EMPTY_CHAIN
from tinkergym.schema.events import (
    CheckpointEvent,
    EpisodeEvent,
    EvaluationEvent,
    Event,
    SettingsUpdate,
    StateEvent,
    StepEvent,
    UpdateEvent,
)

_MOST_NAMED = 20
"""The most events named one by one."""


@dataclass(slots=True)
class EventLog:
    """What a log says."""

    job_id: str
    count: int = 0
    head_sha256: str = EMPTY_CHAIN
    times: list[float] = field(default_factory=list)
    states: list[tuple[Event, StateEvent]] = field(default_factory=list)
    steps: dict[int, list[tuple[Event, StepEvent]]] = field(default_factory=lambda: defaultdict(list))
    """By step. A step is repeated after a kill."""
    attempts: dict[int, int] = field(default_factory=dict)
    """The attempt that wrote a step's event, by the event's number."""
    first_steps: dict[int, int] = field(default_factory=dict)
    """The lowest step of each attempt that did one."""
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    updates: list[tuple[Event, SettingsUpdate]] = field(default_factory=list)
    episodes: dict[tuple[str, str], list[EpisodeEvent]] = field(default_factory=lambda: defaultdict(list))
    """By id and agent."""
    evaluations: list[tuple[Event, EvaluationEvent]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, line: bytes, packed_sha256: str | None) -> None:
        """Take up the next line, and compare it with the hash packed next to it, if there is one."""
        self.count += 1
        own = hashlib.sha256(line)
        self.head_sha256 = hashlib.sha256(bytes.fromhex(self.head_sha256) + own.digest()).hexdigest()
        if packed_sha256 not in (None, own.hexdigest()):
            self.name("differs from the one that was packed")
            self.times.append(0.0)
            return
        try:
            event = Event.model_validate_json(line)
        except ValidationError:
            self.name("is not an event")
            self.times.append(0.0)
            return
        self.times.append(event.time)
        # Otherwise a reader may see another value, of a name that is there twice.
        if event.model_dump_json().encode() != line:
            self.name("is not written as the service writes events")
        if event.seq != self.count:
            self.name(f"has the number {event.seq}")
        if event.job_id != self.job_id:
            self.name(f"is of {event.job_id}")
        self._take(event)

    def _take(self, event: Event) -> None:
        match event.body:
            case StateEvent() as body:
                self.states.append((event, body))
            case StepEvent() as body:
                self.steps[body.step].append((event, body))
                attempt = self.states[-1][1].attempt if self.states else 0
                self.attempts[event.seq] = attempt
                self.first_steps[attempt] = min(body.step, self.first_steps.get(attempt, body.step))
            case CheckpointEvent() as body:
                self.checkpoints.append(body)
            case UpdateEvent() as body:
                update = SettingsUpdate(changes=body.changes, from_step=body.from_step)
                self.updates.append((event, update))
            case EpisodeEvent() as body:
                self.episodes[body.episode_id, body.agent].append(body)
            case EvaluationEvent() as body:
                self.evaluations.append((event, body))
            case _:
                pass

    def name(self, fault: str) -> None:
        """Say what is wrong with the newest event."""
        if len(self.problems) < _MOST_NAMED:
            self.problems.append(f"{EVENTS}: event {self.count} {fault}")


def read_log(files: BundleFiles, job_id: str, *, compare_hashes: bool) -> EventLog:
    """Read the log of a job in a bundle.

    Args:
        files: The bundle.
        job_id: The job.
        compare_hashes: Whether to compare each event with the hash packed next to it.
    """
    log = EventLog(job_id)
    wanted = files.lines(EVENT_HASHES)
    for line in files.lines(EVENTS):
        log.add(line, next(wanted, b"").decode("ascii", "replace") if compare_hashes else None)
    if compare_hashes and next(wanted, None) is not None:
        log.problems.append(f"{EVENT_HASHES}: it has hashes of events that are not there")
    return log
