"""Metrics, warnings and evaluations of runs, read from their logs once: later, only new events are read."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Sequence
from math import ceil, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from backend.gateway.run_alarms import entropy_alarms, idle_alarms, raises_alarms
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.events import EvaluationEvent, StepEvent
from tinkergym.schema.summaries import Alarm, RunSeries, Series

_RUNS = 32
_EVENTS_AT_ONCE = 2000
_ALARM_STEPS = 50
_NOT_METRICS = {"type", "step", "repeated", "stop_reasons", "metrics", "records"}
_STEP_NUMBERS = [name for name in StepEvent.model_fields if name not in _NOT_METRICS]
_SUMMED = ("sampled_tokens", "trained_tokens", "sampling_seconds", "learning_seconds")

Indices = NDArray[np.int64]
Values = NDArray[np.float64]
ReadEvents = Callable[[str, int, int], Sequence[tuple[int, float, str]]]
"""Returns number, time and JSON of a job's steps, warnings and evaluations after an event, at most so
many."""


class _Run:
    """What is known about one run: 10,000 steps of 60 metrics take 5 MB."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_seq = 0
        self.alarms: dict[str, Alarm] = {}
        self.evaluations: list[EvaluationEvent] = []
        self._steps = array("q")
        self._columns: dict[str, int] = {}
        """The number of each metric, in the order in which they appeared first."""
        self._order: tuple[str, ...] = ()
        self._tables: dict[int, tuple[array[int], array[float]]] = {}
        """By the number of metrics known at their time: the places of records in `_steps`, and their values,
        one record after the other. A value at a time would take longer than parsing them."""

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
        if tuple(values) == self._order:  # as nearly always
            numbers = list(values.values())
        else:
            for name in values:
                self._columns.setdefault(name, len(self._columns))
            if len(self._columns) > len(self._order):
                self._order = tuple(self._columns)
            numbers = [values.get(name, nan) for name in self._order]
        places, known = self._tables.setdefault(len(self._order), (array("q"), array("d")))
        places.append(len(self._steps))
        known.fromlist(numbers)
        self._steps.append(event["step"])

    @property
    def names(self) -> list[str]:
        """The metrics that it has."""
        return sorted(self._columns)

    def newest(self) -> tuple[Indices, Indices]:
        """Return the steps in order, and the place of the newest record of each."""
        steps, places = np.unique(np.asarray(self._steps)[::-1], return_index=True)
        return steps, len(self._steps) - 1 - places

    def values(self, name: str, places: Indices) -> Values:
        """Return a metric in the records in these places; nan where it has no value."""
        column, number = np.full(len(self._steps), nan), self._columns[name]
        for width, (known, numbers) in self._tables.items():
            if number < width:
                column[known] = np.asarray(numbers).reshape(-1, width)[:, number]
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
            return [*found, *idle_alarms(steps, columns), *entropy_alarms(steps, columns)]

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
