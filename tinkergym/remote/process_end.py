"""What a process says to the service before it ends: at its normal end, after Ctrl-C and at SIGTERM.

A call that is registered here may take a few seconds. It must only wait for threads that are running already:
it may have interrupted its own thread anywhere, and at a process's end no new thread starts.
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
    # What the parent holds is not the child's to hand back, and the threads that would do so are not there.
    os.register_at_fork(after_in_child=_calls.clear)


def before_the_end(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` called before this process ends, unless it is killed; returns what takes that back."""
    global _registered  # noqa: PLW0603  one for the process, as atexit and signals are
    if not _registered:
        _registered = True
        atexit.register(_call_all)
    main = threading.current_thread() is threading.main_thread()
    # A handler of the program's own stays: it ends the program in an orderly way, or does not want it to end.
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
    # The process ends as it would have without this handler.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
