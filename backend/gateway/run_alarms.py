"""Alarms that a run's figures give, next to the warnings that the job gives itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from tinkergym.schema.ids import AgentMetric
from tinkergym.schema.summaries import Alarm

Column = Sequence[float] | NDArray[np.float64]

_TIMES = "step_seconds", "sampling_seconds", "learning_seconds"
_READ = {"failed_episodes", *_TIMES}
_ENTROPY = "sampled_entropy"
_STEPS = 20
"""The newest steps that are looked at; fewer say little."""
_MOST_IDLE = 0.7
_LEAST_ENTROPY = 0.1
"""Of the entropy at the beginning."""


def raises_alarms(name: str) -> bool:
    """Whether a metric's values are looked at for alarms."""
    return name in _READ or AgentMetric.parse(name).name == _ENTROPY


def idle_alarms(steps: Sequence[int], columns: Mapping[str, Column]) -> list[Alarm]:
    """Return an alarm if neither engine nor learner works for most of the time of the newest steps."""
    whole, *busy = (sum(_newest(columns.get(name, ()), len(steps))) for name in _TIMES)
    if len(steps) < _STEPS or whole <= 0:
        return []
    idle = 1 - min(1.0, sum(busy) / whole)
    if idle <= _MOST_IDLE:
        return []
    text = f"neither engine nor learner worked for {idle:.0%} of the time of the newest {_STEPS} steps"
    return [_alarm("idle", text, steps)]


def entropy_alarms(steps: Sequence[int], columns: Mapping[str, Column]) -> list[Alarm]:
    """Return an alarm for each policy whose actions have lost nearly all of their entropy."""
    found = []
    for name, column in columns.items():
        metric = AgentMetric.parse(name)
        if metric.name != _ENTROPY or len(steps) < 2 * _STEPS:
            continue
        first = [value for value in column[:_STEPS] if isfinite(value)]
        newest = _newest(column, len(steps))
        if not first or not newest:
            continue
        before, now = sum(first) / len(first), sum(newest) / len(newest)
        if 0 <= now < _LEAST_ENTROPY * before:
            whose = f" of {metric.agent}" if metric.agent else ""
            text = f"the actions{whose} have an entropy of {now:.3g} nats per token, at first {before:.3g}"
            found.append(_alarm("entropy_falls", text, steps))
    return found


def _newest(column: Column, count: int) -> list[float]:
    """Return a metric's values in the newest steps; nothing if it has none there."""
    return [value for value in column[max(0, count - _STEPS) : count] if isfinite(value)]


def _alarm(name: str, message: str, steps: Sequence[int]) -> Alarm:
    some = list(steps[-_STEPS:])
    return Alarm(name=name, message=message, count=1, first_step=some[0], last_step=some[-1], steps=some)
