"""Wait for a coroutine from synchronous code: scores and reward terms may be `async def`.

All coroutines of a process run on one event loop in its own thread. So a client that a score keeps open stays
usable, and a notebook, whose thread already runs a loop, can score too.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

Value = TypeVar("Value")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a forked process has its parent's loop, but not its thread."""


def settled(value: Value | Awaitable[Value]) -> Value:
    """Return a value, or the result of an awaitable; its error is raised here."""
    if not inspect.isawaitable(value):
        return value
    import asyncio  # asyncio takes longer to import than all of our modules that score without it.

    result: Value = asyncio.run_coroutine_threadsafe(_awaited(value), _loop()).result()
    return result


async def _awaited(value: Awaitable[Value]) -> Value:
    return await value


def _loop() -> asyncio.AbstractEventLoop:
    import asyncio

    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="async-scores", daemon=True).start()
        return loop


def _run(loop: Any) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    loop.run_forever()
