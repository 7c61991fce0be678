"""Wait for a coroutine from synchronous code: scores and reward terms may be `async def`.

All coroutines of a process run on one event loop in its own thread. So a client that a score keeps open stays
usable, and a notebook, whose thread already runs a loop, can score too.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

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
