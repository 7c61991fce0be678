"""Metrics, warnings and evaluations of runs, read from their logs once: later, only new events are read."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
from pydantic_core import from_json

from backend.gateway.run_alarms import entropy_alarms, idle_alarms
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.events import EvaluationEvent
from tinkergym.schema.summaries import Alarm, RunSeries, Series

_RUNS = 32
_EVENTS_AT_ONCE = 500
_ALARM_STEPS = 50
_NOT_METRICS = {"type", "step", "repeated", "stop_reasons", "metrics", "records"}
_SUMMED = ("sampled_tokens", "trained_tokens", "sampling_seconds", "learning_seconds")

ReadEvents = Callable[[str, int, int], Sequence[tuple[int, float, str]]]
"""Returns number, time and JSON of a job's steps, warnings and evaluations after an event, at most so
many."""


class _Run:
    """What is known about one run, in columns: 10,000 steps of 60 metrics take 5 MB."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_seq = 0
        self.steps = array("q")
        self.columns: dict[str, array[float]] = {}
        self.alarms: dict[str, Alarm] = {}
        self.evaluations: list[EvaluationEvent] = []
        self._rows: dict[int, int] = {}

    def add(self, seq: int, time: float, body: str) -> None:
        event = from_json(body)
        if event["type"] == "step":
            self._add_step(event, time)
        elif event["type"] == "evaluation":
            self.evaluations.append(EvaluationEvent.model_validate(event))
        else:
            self._add_warning(event)
        self.last_seq = seq

    def _add_step(self, event: dict[str, Any], time: float) -> None:
        row = self._rows.setdefault(event["step"], len(self.steps))
        if row == len(self.steps):
            self.steps.append(event["step"])
        else:  # repeated after a resume
            for column in self.columns.values():
                if row < len(column):
                    column[row] = nan
        values = event["metrics"]
        values["time"] = time
        for name, count in event["stop_reasons"].items():
            values[f"stop/{name}"] = count
        for name, value in event.items():
            if name not in _NOT_METRICS:
                values[name] = value
        columns = self.columns
        for name, value in values.items():
            if value.__class__ is not float and not isinstance(value, int | float):
                continue
            if name not in columns:
                columns[name] = array("d")
            column = columns[name]
            if len(column) == row:  # as nearly always
                column.append(value)
            else:
                column.extend([nan] * (row + 1 - len(column)))
                column[row] = value

    def _add_warning(self, event: dict[str, Any]) -> None:
        if event["repeated"]:
            return
        known, step = self.alarms.get(event["name"]), event["step"]
        steps = [*(known.steps if known else []), step][-_ALARM_STEPS:]
        self.alarms[event["name"]] = Alarm(
            name=event["name"],
            message=event["message"],
            count=(known.count if known else 0) + 1,
            first_step=known.first_step if known else step,
            last_step=step,
            steps=list(dict.fromkeys(steps)),
            episodes=event.get("episodes", []),
        )


class RunReader:
    """Runs that were asked for lately. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: BoundedDict[str, _Run] = BoundedDict(_RUNS)

    def series(
        self, job_id: str, read: ReadEvents, names: Sequence[str], points: int, *, first_step: int = 0
    ) -> RunSeries:
        """Return metrics of a run.

        Args:
            job_id: Of the run.
            read: Reads its events.
            names: The metrics; a `*` stands for anything. All if empty.
            points: About how many points of each.
            first_step: Only this step and later ones.
        """
        run = self._up_to_now(job_id, read)
        with run.lock:
            known = sorted(run.columns)
            wanted = known
            if names:
                wanted = list(dict.fromkeys(one for name in names for one in _named(name, known)))
            order = np.argsort(np.array(run.steps), kind="stable").tolist()
            order = [row for row in order if run.steps[row] >= first_step]
            return RunSeries(
                last_seq=run.last_seq,
                newest_step=max(run.steps, default=0),
                names=known,
                sums={name: float(np.nansum(run.columns[name])) for name in _SUMMED if name in run.columns},
                series=[thinned(name, run.steps, run.columns[name], order, points) for name in wanted],
            )

    def alarms(self, job_id: str, read: ReadEvents) -> list[Alarm]:
        """Return the warnings of a run by name."""
        run = self._up_to_now(job_id, read)
        with run.lock:
            failed = run.columns.get("failed_episodes", array("d"))
            lost = [run.steps[row] for row, count in enumerate(failed) if count > 0]
            found = list(run.alarms.values())
            if lost:
                found.append(_failed_episodes(lost, int(sum(count for count in failed if count > 0))))
            return [*found, *idle_alarms(run.steps, run.columns), *entropy_alarms(run.steps, run.columns)]

    def evaluations(self, job_id: str, read: ReadEvents) -> list[EvaluationEvent]:
        """Return the finished evaluations of a run, in order."""
        run = self._up_to_now(job_id, read)
        with run.lock:
            return list(run.evaluations)

    def _up_to_now(self, job_id: str, read: ReadEvents) -> _Run:
        with self._lock:
            run = self._known.get(job_id)
            if run is None:
                run = self._known[job_id] = _Run()
        with run.lock:
            while page := read(job_id, run.last_seq, _EVENTS_AT_ONCE):
                for seq, time, body in page:
                    run.add(seq, time, body)
                if len(page) < _EVENTS_AT_ONCE:
                    break
        return run


def _failed_episodes(steps: Sequence[int], episodes: int) -> Alarm:
    return Alarm(
        name="failed_episodes",
        message=f"{episodes} episodes failed; they are not trained on and do not count as reward 0",
        count=len(steps),
        first_step=min(steps),
        last_step=max(steps),
        steps=sorted(steps)[-_ALARM_STEPS:],
    )


def _named(pattern: str, known: Sequence[str]) -> Sequence[str]:
    """Return the known names that a name, perhaps with `*`, stands for."""
    if "*" not in pattern:
        return [pattern] if pattern in known else []
    found = re.compile(".+".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return [name for name in known if found.fullmatch(name)]


def thinned(
    name: str, steps: Sequence[int], column: Sequence[float], order: Sequence[int], points: int
) -> Series:
    """Return a metric's values by step; of each of `points / 2` stretches the smallest and the largest."""
    rows = np.asarray(order)
    rows = rows[rows < len(column)]
    values = np.asarray(column)[rows]
    there = ~np.isnan(values)
    rows, values = rows[there], values[there]
    if len(rows) > points:
        count = points // 2
        edges = (np.arange(count + 1) * (2 * len(rows) / points)).astype(int)
        stretches = [(start, end) for start, end in pairwise(edges.tolist()) if start < end]
        ends = {start + int(values[start:end].argmin()) for start, end in stretches}
        ends |= {start + int(values[start:end].argmax()) for start, end in stretches}
        kept = sorted(ends | {0, len(rows) - 1})
        rows, values = rows[kept], values[kept]
    return Series(name=name, steps=np.asarray(steps)[rows].tolist(), values=values.tolist())
