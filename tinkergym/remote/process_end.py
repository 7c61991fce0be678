"""Calls to make before the process ends: normally, after Ctrl-C, and on SIGTERM.

A registered call only tells threads that are already running to hand back what they hold, and returns the
event that they set afterwards; it does not wait. It may have interrupted its own thread anywhere, and no new
threads start while a process ends. All events are waited for together, so many jobs end as fast as one.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

_LEAVE_SECONDS = 4.0
"""How long the end of the process waits for all calls together."""

_Call = Callable[[], threading.Event | None]

_calls: dict[int, _Call] = {}
_registered = False

if hasattr(os, "register_at_fork"):
    # A child must not return the parent's leases, and does not have the threads to do so.
    os.register_at_fork(after_in_child=_calls.clear)


def before_the_end(call: _Call) -> Callable[[], None]:
    """Register `call` to run before this process ends, unless it is killed.

    The process then waits a few seconds for the event that it returns, if any. Returns a function that
    unregisters the call.
    """
    global _registered  # noqa: PLW0603  one for the process, as atexit and signals are
    if not _registered:
        _registered = True
        atexit.register(leave_all)
    main = threading.current_thread() is threading.main_thread()
    # Keep a handler of the program: it ends the program cleanly, or prevents its end.
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    key = id(call)
    _calls[key] = call
    return lambda: _forget(key)


def _forget(key: int) -> None:
    _calls.pop(key, None)


def leave_all() -> None:
    """Run all registered calls, then wait for all of their events, with one deadline."""
    leaving: list[threading.Event] = []
    while _calls:
        # One by one: a signal may come in between, and calls may unregister others.
        _, call = _calls.popitem()
        left = call()
        if left is not None:
            leaving.append(left)
    deadline = time.monotonic() + _LEAVE_SECONDS
    for left in leaving:
        left.wait(max(0.0, deadline - time.monotonic()))


def _terminated(number: int, _frame: FrameType | None) -> None:
    leave_all()
    # End the process as it would have ended without this handler.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
