"""Arguments of environments must be JSON: they are sent with a job, stored with it and shown."""

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
    "pass a path and a split instead, and open the data in the environment's constructor, for example with "
    "tinkergym.tasks.JsonlTasks(path, split=split)"
)
_PLAIN = "use a string, a finite number, a bool, None, or lists and dicts of them"


def refuse_other_than_json(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of an environment.

    Raises:
        InvalidRequestError: One is not a JSON value. For a dataset, pass its name instead.
    """
    for name, value in kwargs.items():
        if reason := _why_no_json(value):
            # Anything with rows: a task source, a dataset, a table, an array, a generator.
            data = isinstance(value, Iterable) and not isinstance(value, dict | list | tuple)
            raise InvalidRequestError(
                f"{env_id} cannot take {quoted(value)}: {reason}, but arguments are sent with a job as JSON",
                hint=_NAME_DATA if data else _PLAIN,
                field=f"kwargs.{name}",
            )


def built(build: Callable[..., Built], kwargs: Mapping[str, Any], *, field: str) -> Built:
    """Call an environment's constructor. Errors pass through, except for wrong or missing arguments.

    Raises:
        InvalidEnvironmentError: There is no such argument, or one is missing; `field` names the setting.
    """
    try:
        return build(**kwargs)
    except TypeError as error:
        hint = argument_hint(error, build, kwargs)
        if not hint:
            raise  # Caused by something else.
        raise InvalidEnvironmentError(
            f"the environment cannot be created: {error}", hint=hint, field=field
        ) from error


def argument_hint(
    error: BaseException, build: object, kwargs: Mapping[str, Any], known: Iterable[str] = ()
) -> str:
    """Suggest the argument that was meant, or name the missing one; empty if neither applies.

    Args:
        error: The constructor's error.
        build: A class, or a function that creates an environment.
        kwargs: The arguments it was called with.
        known: Names of other arguments that it passes on.
    """
    try:
        parameters = list(inspect.signature(build).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # Not a Python function.
        parameters = []
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    named = [p for p in parameters if p.kind in kinds]
    needed = [p.name for p in named if p.default is p.empty and p.name not in (*kwargs, *known)]
    # The missing argument may belong to something that the constructor calls.
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
            return f"the key {quoted(odd)} is not a string"
        return next(filter(None, map(_why_no_json, value.values())), "")
    if isinstance(value, list | tuple):
        return next(filter(None, map(_why_no_json, value)), "")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return f"{type(value).__name__ if not isinstance(value, float) else quoted(value)} is not JSON"
    return ""
