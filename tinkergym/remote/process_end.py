"""Calls to make before the process ends: normally, after Ctrl-C, and on SIGTERM.

A registered call may take a few seconds. It must only wait for threads that are already running: it may have
interrupted its own thread anywhere, and no new threads start while a process ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_calls: dict[int, Callable[[], None]] = {}
_registered = False

if hasattr(os, "register_at_fork"):
    # A child must not return the parent's leases, and does not have the threads to do so.
    os.register_at_fork(after_in_child=_calls.clear)


def before_the_end(call: Callable[[], None]) -> Callable[[], None]:
    """Register `call` to run before this process ends, unless it is killed.

    Returns a function that unregisters it.
    """
    global _registered  # noqa: PLW0603  one for the process, as atexit and signals are
    if not _registered:
        _registered = True
        atexit.register(_call_all)
    main = threading.current_thread() is threading.main_thread()
    # Keep a handler of the program: it ends the program cleanly, or prevents its end.
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    key = id(call)
    _calls[key] = call
    return lambda: _forget(key)


def _forget(key: int) -> None:
    _calls.pop(key, None)


def _call_all() -> None:
    while _calls:
        _, call = _calls.popitem()
        call()


def _terminated(number: int, _frame: FrameType | None) -> None:
    _call_all()
    # End the process as it would have ended without this handler.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
