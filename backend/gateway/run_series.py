"""Metrics, warnings and evaluations of runs, read from their logs once: later, only new events are read."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from backend.gateway.run_alarms import metric_alarms, raises_alarms
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.events import EvaluationEvent, StepEvent
from tinkergym.schema.summaries import Alarm, RunSeries, Series

_RUNS = 32
_EVENTS_AT_ONCE = 2000
_ALARM_STEPS = 50
_MOST_NAMES = 2000
_TABLES = 64
_NOT_METRICS = {"type", "step", "repeated", "stop_reasons", "metrics", "records"}
_STEP_NUMBERS = [name for name in StepEvent.model_fields if name not in _NOT_METRICS]
_SUMMED = ("sampled_tokens", "trained_tokens", "sampling_seconds", "learning_seconds")

Indices = NDArray[np.int64]
Values = NDArray[np.float64]
ReadEvents = Callable[[str, int, int], Sequence[tuple[int, float, str]]]
"""Returns number, time and JSON of a job's steps, warnings and evaluations after an event, at most so
many."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Values of records that have the same metrics."""

    columns: dict[str, int]
    places: array[int] = field(default_factory=lambda: array("q"))
    """In the list of all records."""
    numbers: array[float] = field(default_factory=lambda: array("d"))
    """One record after the other."""


class _Run:
    """What is known about one run: 10,000 steps of 60 metrics take 5 MB."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_seq = 0
        self.alarms: dict[str, Alarm] = {}
        self.evaluations: list[EvaluationEvent] = []
        self.left_out = 0
        """Values of names beyond the most that are kept."""
        self._steps = array("q")
        self._names: set[str] = set()
        self._tables: dict[tuple[str, ...], _Table] = {}
        """By the metrics of their records. A value at a time would take longer than parsing them."""
        self._rare: dict[str, tuple[array[int], array[float]]] = {}
        """Of records that fit in no table, by metric: places in `_steps`, and values."""

    def add(self, seq: int, time: float, body: str) -> None:
        event = from_json(body, cache_strings="keys")  # two thirds of the time
        if event["type"] == "step":
            self._add_step(event, time)
        elif event["type"] == "evaluation":
            self.evaluations.append(EvaluationEvent.model_validate(event))
        else:
            self._add_warning(event)
        self.last_seq = seq

    def _add_step(self, event: dict[str, Any], time: float) -> None:
        values = event["metrics"]
        values["time"] = time
        for name, count in event["stop_reasons"].items():
            values[f"stop/{name}"] = count
        for name in _STEP_NUMBERS:
            if (value := event.get(name)) is not None:
                values[name] = value
        table = self._tables.get(tuple(values)) or self._table_for(values)
        place = len(self._steps)
        self._steps.append(event["step"])
        if table is not None:
            table.places.append(place)
            table.numbers.fromlist(list(values.values()))
            return
        for name, value in values.items():
            places, numbers = self._rare.setdefault(name, (array("q"), array("d")))
            places.append(place)
            numbers.append(value)

    def _table_for(self, values: dict[str, float]) -> _Table | None:
        """Return a new table for records with these metrics, without those that are not kept.

        None if there are enough tables: a job whose every step has other metrics would need one per step.
        """
        for name in [name for name in values if name not in self._names]:
            if len(self._names) < _MOST_NAMES:
                self._names.add(name)
            else:
                del values[name]
                self.left_out += 1
        kept = tuple(values)
        if kept not in self._tables and len(self._tables) < _TABLES:
            self._tables[kept] = _Table({name: number for number, name in enumerate(kept)})
        return self._tables.get(kept)

    @property
    def names(self) -> list[str]:
        """The metrics that it has."""
        return sorted(self._names)

    def newest(self) -> tuple[Indices, Indices]:
        """Return the steps in order, and the place of the newest record of each."""
        steps, places = np.unique(np.asarray(self._steps)[::-1], return_index=True)
        return steps, len(self._steps) - 1 - places

    def values(self, name: str, places: Indices) -> Values:
        """Return a metric in the records in these places; nan where it has no value."""
        column = np.full(len(self._steps), nan)
        for table in self._tables.values():
            if (number := table.columns.get(name)) is not None:
                rows = np.asarray(table.numbers).reshape(-1, len(table.columns))
                column[table.places] = rows[:, number]
        if (rare := self._rare.get(name)) is not None:
            column[rare[0]] = rare[1]
        return column[places]

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
            known = run.names
            wanted = known
            if names:
                wanted = list(dict.fromkeys(one for name in names for one in _named(name, known)))
            steps, places = run.newest()
            first = int(np.searchsorted(steps, first_step))
            return RunSeries(
                last_seq=run.last_seq,
                newest_step=int(steps[-1]) if len(steps) else 0,
                names=known,
                left_out=run.left_out,
                sums={name: float(np.nansum(run.values(name, places))) for name in _SUMMED if name in known},
                series=[
                    thinned(name, steps[first:], run.values(name, places[first:]), points) for name in wanted
                ],
            )

    def alarms(self, job_id: str, read: ReadEvents) -> list[Alarm]:
        """Return the warnings of a run by name."""
        run = self._up_to_now(job_id, read)
        with run.lock:
            numbers, places = run.newest()
            steps = numbers.tolist()
            columns = {name: run.values(name, places) for name in run.names if raises_alarms(name)}
            found = list(run.alarms.values())
            failed = columns.get("failed_episodes", np.zeros(0))
            if (failed > 0).any():
                found.append(_failed_episodes(numbers[failed > 0].tolist(), int(np.nansum(failed))))
            return [*found, *metric_alarms(steps, columns)]

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
    parts = pattern.split("*")
    if len(parts) == 1:
        return [pattern] if pattern in known else []
    return [name for name in known if _fits(parts, name)]


def _fits(parts: Sequence[str], name: str) -> bool:
    """Whether a name is made of these parts, with at least one character between two.

    The first place of each part will do. A regular expression tries all of them, for hours if asked to.
    """
    if not name.startswith(parts[0]):
        return False
    end = len(parts[0])
    for part in parts[1:-1]:
        found = name.find(part, end + 1)
        if found < 0:
            return False
        end = found + len(part)
    return end < len(name) - len(parts[-1]) and name.endswith(parts[-1])


def thinned(name: str, steps: Indices, values: Values, points: int) -> Series:
    """Return a metric's values by step; of each of `points / 2` stretches the smallest and the largest."""
    there = ~np.isnan(values)
    steps, values = steps[there], values[there]
    if len(values) > points:
        wide = ceil(2 * len(values) / points)
        # Filled up with the last value, which the last stretch then has several times: its first counts.
        stretches = np.pad(values, (0, -len(values) % wide), "edge").reshape(-1, wide)
        begins = np.arange(0, len(values), wide)
        ends = [begins + stretches.argmin(axis=1), begins + stretches.argmax(axis=1)]
        kept = np.unique(np.concatenate([*ends, [0, len(values) - 1]]))
        steps, values = steps[kept], values[kept]
    # Each number was checked when it was recorded.
    return Series.model_construct(name=name, steps=steps.tolist(), values=values.tolist())
