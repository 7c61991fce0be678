"""Alarms that a run's figures give, next to the warnings that the job gives itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from tinkergym.schema.ids import AgentMetric
from tinkergym.schema.summaries import Alarm

Column = Sequence[float] | NDArray[np.float64]

_TIMES = "step_seconds", "sampling_seconds", "learning_seconds"
_ENTROPY, _PARITY, _STALENESS = "sampled_entropy", "parity_mean", "staleness_mean"
_READ = {"failed_episodes", *_TIMES, _STALENESS}
_OF_POLICIES = {_ENTROPY, _PARITY}
_STEPS = 20
"""The newest steps that are looked at; fewer say little."""
_MOST_IDLE = 0.7
_LEAST_ENTROPY = 0.1
"""Of the entropy at the beginning."""
_MOST_STALE = 2.0
"""Versions, on average."""
_MOST_DRIFT = 3.0
"""Times the difference at the beginning; below so many nats it is rounding."""
_LEAST_DRIFT = 1e-4


def raises_alarms(name: str) -> bool:
    """Whether a metric's values are looked at for alarms."""
    return name in _READ or AgentMetric.parse(name).name in _OF_POLICIES


def metric_alarms(steps: Sequence[int], columns: Mapping[str, Column]) -> list[Alarm]:
    """Return the alarms of a run's metrics by step."""
    of_all = [idle_alarms, entropy_alarms, parity_alarms, staleness_alarms]
    return [alarm for alarms in of_all for alarm in alarms(steps, columns)]


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
    for agent, before, now in _changes(_ENTROPY, steps, columns):
        if 0 <= now < _LEAST_ENTROPY * before:
            text = (
                f"the actions{_of(agent)} have an entropy of {now:.3g} nats per token, at first {before:.3g}"
            )
            found.append(_alarm("entropy_falls", text, steps))
    return found


def parity_alarms(steps: Sequence[int], columns: Mapping[str, Column]) -> list[Alarm]:
    """Return an alarm for each policy on which learner and engine agree less and less.

    Beyond the job's `parity_threshold` it fails; this comes before.
    """
    found = []
    for agent, before, now in _changes(_PARITY, steps, columns):
        if now > max(_LEAST_DRIFT, _MOST_DRIFT * before):
            text = (
                f"learner and engine{_of(agent)} differ by {now:.3g} nats per token on average, "
                f"at first by {before:.3g}"
            )
            found.append(_alarm("parity_drift", text, steps))
    return found


def staleness_alarms(steps: Sequence[int], columns: Mapping[str, Column]) -> list[Alarm]:
    """Return an alarm if the tokens of the newest steps were sampled by versions that are long gone."""
    newest = _newest(columns.get(_STALENESS, ()), len(steps))
    mean = sum(newest) / max(1, len(newest))
    if len(newest) < _STEPS or mean < _MOST_STALE:
        return []
    text = f"the tokens of the newest {_STEPS} steps were sampled {mean:.1f} versions before, on average"
    return [_alarm("stale_tokens", text, steps)]


def _changes(
    metric: str, steps: Sequence[int], columns: Mapping[str, Column]
) -> Iterator[tuple[str, float, float]]:
    """Yield the agent of each policy with a metric, and its first and newest means."""
    for name, column in columns.items():
        one = AgentMetric.parse(name)
        if one.name != metric or len(steps) < 2 * _STEPS:
            continue
        first = [value for value in column[:_STEPS] if isfinite(value)]
        newest = _newest(column, len(steps))
        if first and newest:
            yield one.agent, sum(first) / len(first), sum(newest) / len(newest)


def _of(agent: str) -> str:
    return f" of {agent}" if agent else ""


def _newest(column: Column, count: int) -> list[float]:
    """Return a metric's values in the newest steps; nothing if it has none there."""
    return [value for value in column[max(0, count - _STEPS) : count] if isfinite(value)]


def _alarm(name: str, message: str, steps: Sequence[int]) -> Alarm:
    some = list(steps[-_STEPS:])
    return Alarm(name=name, message=message, count=1, first_step=some[0], last_step=some[-1], steps=some)
