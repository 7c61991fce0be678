"""Arguments of environments are JSON: they travel with a job, are stored with it and are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.quoting import quoted

_NAME_DATA = (
    "name the data instead, by a path and a split, and open it in the environment's constructor, "
    "for example with tinkergym.JsonlTasks(path, split=split)"
)
_PLAIN = "give a string, a finite number, a bool, None, or lists and dicts of them"


def refuse_other_than_json(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of an environment.

    Raises:
        InvalidRequestError: One is no JSON value; a data set among them is to be named instead.
    """
    for name, value in kwargs.items():
        if reason := _why_no_json(value):
            # Whatever has rows: a task source, a data set, a table, an array, a generator.
            data = isinstance(value, Iterable) and not isinstance(value, dict | list | tuple)
            raise InvalidRequestError(
                f"{env_id} cannot take {quoted(value)}: {reason}, and arguments travel with a job as JSON",
                hint=_NAME_DATA if data else _PLAIN,
                field=f"kwargs.{name}",
            )


def _why_no_json(value: object) -> str:
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"the key {quoted(odd)} is no string"
        return next(filter(None, map(_why_no_json, value.values())), "")
    if isinstance(value, list | tuple):
        return next(filter(None, map(_why_no_json, value)), "")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return f"{type(value).__name__ if not isinstance(value, float) else quoted(value)} is no JSON"
    return ""
