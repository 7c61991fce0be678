"""Arguments of environments are JSON: they travel with a job, are stored with it and are shown."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.user_code.quoting import quoted

Built = TypeVar("Built")

_NAME_DATA = (
    "name the data instead, by a path and a split, and open it in the environment's constructor, "
    "for example with tinkergym.tasks.JsonlTasks(path, split=split)"
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


def built(build: Callable[..., Built], kwargs: Mapping[str, Any], *, field: str) -> Built:
    """Call what makes an environment; what it raises is left as it is, but for a wrong or missing argument.

    Raises:
        InvalidEnvironmentError: There is no such argument, or one is missing; `field` is where they are
            written.
    """
    try:
        return build(**kwargs)
    except TypeError as error:
        hint = argument_hint(error, build, kwargs)
        if not hint:
            raise  # of another reason
        raise InvalidEnvironmentError(
            f"the environment cannot be made: {error}", hint=hint, field=field
        ) from error


def argument_hint(
    error: BaseException, build: object, kwargs: Mapping[str, Any], known: Iterable[str] = ()
) -> str:
    """Say which argument was meant by one that a constructor refused, or which it lacks; else empty.

    Args:
        error: What it raised.
        build: A class, or a function that makes an environment.
        kwargs: What it was called with.
        known: Names of other arguments that it takes, where it hands them on.
    """
    try:
        parameters = list(inspect.signature(build).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # no Python function
        parameters = []
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    named = [p for p in parameters if p.kind in kinds]
    needed = [p.name for p in named if p.default is p.empty and p.name not in (*kwargs, *known)]
    # What is missing may be an argument of something that the constructor calls.
    if needed and isinstance(error, TypeError) and re.search(rf"\bmissing .*{needed[0]!r}", str(error)):
        written = ", ".join(f"{name!r}: ..." for name in needed)
        return f"it needs {' and '.join(needed)}, as in env_kwargs={{{written}}}"
    refused = next((name for name in kwargs if f"unexpected keyword argument {name!r}" in str(error)), None)
    if refused is None:
        return ""
    names = list(dict.fromkeys([*(p.name for p in named), *known]))
    close = difflib.get_close_matches(refused, names, n=1, cutoff=0.6)
    if close:
        return f"{refused}: did you mean {close[0]}?"
    return f"it has no argument {refused}" + (f"; it takes {', '.join(names)}" if names else "")


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
