"""Values returned by users' code: coroutines are awaited, and numbers converted to floats.

Scores and reward terms may be `async def`. All coroutines of a process run on one event loop in its own
thread. So a client that a score keeps open stays usable, and a notebook, whose thread already runs a loop,
can score too. Numbers may be floats, arrays without dimensions, or tensors.
"""

from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

import numpy as np

from tinkergym.user_code.quoting import quoted, type_in_words

Value = TypeVar("Value")

_lock = threading.Lock()
_loops: dict[int, Any] = {}
"""By process: a forked process has its parent's loop, but not its thread."""


def settled(value: Value | Awaitable[Value]) -> Value:
    """Return a value, or the result of an awaitable; its error is raised here."""
    if not inspect.isawaitable(value):
        return value
    import asyncio  # asyncio takes longer to import than all of our modules that score without it.

    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="async-scores", daemon=True).start()
    result: Value = asyncio.run_coroutine_threadsafe(_awaited(value), loop).result()
    return result


async def _awaited(value: Awaitable[Value]) -> Value:
    return await value


def finite_number(value: object) -> float:
    """Return a reward, a metric or a term's value as a float.

    Accepts what `float` accepts, except text and arrays with dimensions: for an array with one element it is
    unclear whether a number was meant.

    Raises:
        ValueError: It is not a finite number. The message describes the value, to put after "returned".
    """
    value = number(value)
    if not math.isfinite(value):
        raise ValueError(f"{value!r}, which is not a finite number")
    return value


def number(value: object) -> float:
    """Like `finite_number`, for a number that may be NaN or infinite."""
    return value if type(value) is float else _as_float(value)


def finite_json_number(value: object) -> float | None:
    """Return a JSON number or boolean as a float; None if it is something else, or too large for one."""
    if not isinstance(value, bool | int | float):
        return None
    try:
        return finite_number(value)
    except ValueError:
        return None


def _as_float(value: object) -> float:
    if value is None:
        raise ValueError(type_in_words(value))
    kind = type(value).__name__
    if inspect.iscoroutine(value):
        value.close()  # Otherwise Python warns that it was never awaited.
        raise ValueError(
            f"a coroutine: {value.__qualname__} is an async def, which is not awaited here; use def"
        )
    shape = getattr(value, "shape", ())
    has_value = hasattr(value, "__float__") or hasattr(value, "__index__")
    if not has_value or isinstance(value, type | str | bytes) or _is_complex(value):
        raise ValueError(f"a {kind}, which is not a number: {quoted(value)}")
    if len(shape):
        raise ValueError(f"a {kind} of shape {tuple(shape)}, not one number: {quoted(value)}")
    try:
        item = getattr(
            value, "item", None
        )  # Method of arrays and tensors, including tensors with a gradient.
        return float(item() if callable(item) else value)  # type: ignore[arg-type] # just looked at
    except Exception as error:  # Foreign code; also an int that exceeds a float.
        raise ValueError(f"a {kind} that is not a finite number ({error}): {quoted(value)}") from None


def _is_complex(value: object) -> bool:
    return isinstance(value, np.generic | np.ndarray) and np.iscomplexobj(value)
