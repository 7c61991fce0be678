"""What environments return besides observations, checked: rewards, flags, metrics, template variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tinkergym.messages import Message, is_unicode, messages_to_answer, observation_messages
from tinkergym.schema.chat_templates import variables_fault
from tinkergym.trajectory.trajectory import LARGEST_REWARD, LONGEST_METRIC_NAME, MOST_METRICS
from tinkergym.trajectory.turn_views import View, view_in
from tinkergym.user_code.quoting import quoted
from tinkergym.user_code.returned_values import finite_number


class StepValues(NamedTuple):
    """What `step` returned, except the reward."""

    messages: list[Message]
    terminated: bool
    truncated: bool
    metrics: dict[str, float]
    view: View | None

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


def read_step(observation: object, terminated: object, truncated: object, info: object) -> StepValues:
    """Return what an environment's `step` returned.

    Raises:
        TypeError: A value has another type.
        ValueError: A value is invalid.
    """
    flags = _flag(terminated, "terminated"), _flag(truncated, "truncated")
    metrics, view = _metrics(info), view_in(info)
    if not any(flags):
        return StepValues(messages_to_answer(observation), *flags, metrics, view)
    # Many environments show nothing at the end, and the last observation is not needed.
    shown = isinstance(observation, str | Mapping | list)
    return StepValues(observation_messages(observation) if shown else [], *flags, metrics, view)


def variables_in(info: Any) -> Mapping[str, Any]:
    """Return the template variables in the info of a `reset`.

    Raises:
        TypeError: They are not a dict.
        InvalidRequestError: One cannot be a template variable.
    """
    given = info.get("template_variables") if isinstance(info, Mapping) else None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"info['template_variables'] must be a dict, not {type(given).__name__}")
    if fault := variables_fault(given):
        raise fault.error()
    return given


def valid_reward(value: object) -> float:
    """Return a reward as a float.

    Raises:
        ValueError: It is not a finite number, or too large. The message follows "the reward".
    """
    paid = finite_number(value)
    if abs(paid) > LARGEST_REWARD:
        raise ValueError(f"{paid:g}, which is beyond {LARGEST_REWARD:g}; scale it down")
    return paid


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}: {quoted(value)}")
    return bool(value)


def _metrics(info: Any) -> dict[str, float]:
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a dict, not {type(info).__name__}: {quoted(info)}")
    metrics = info.get("metrics")
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"info['metrics'] must be a dict of numbers, not {type(metrics).__name__}")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"info['metrics'] has {len(metrics)} names; report at most {MOST_METRICS} per turn")
    numbers = {}
    for name, value in metrics.items():
        if not is_unicode(str(name)):
            raise ValueError(f"info['metrics'] has the name {name!a}, which is not valid Unicode text")
        if len(str(name)) > LONGEST_METRIC_NAME:
            raise ValueError(
                f"info['metrics'] has the name {quoted(name)}; a name has at most {LONGEST_METRIC_NAME} "
                "characters"
            )
        try:
            numbers[str(name)] = finite_number(value)
        except ValueError as error:
            raise ValueError(f"info['metrics'][{name!r}] is {error}") from None
    return numbers
