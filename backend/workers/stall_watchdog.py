"""Ends a process whose interpreter is blocked: one call of foreign code holds Python's lock.

No thread of that process can run Python code meanwhile, so the watchdog is `faulthandler`'s own thread, which
needs no lock. The usual cause is a catastrophic regular expression.
"""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

_RESETS_PER_DEADLINE = 10


def end_on_stall(trace: Path, seconds: float) -> None:
    """End this process with exit status 1 once no Python code of ours has run for `seconds`.

    Args:
        trace: The file for the stacks of all threads.
        seconds: How long one call may block the interpreter.
    """
    # Never closed: the watchdog writes to its file descriptor.
    file = trace.open("w", encoding="utf-8")

    def put_off() -> None:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
            threading.Event().wait(seconds / _RESETS_PER_DEADLINE)

    threading.Thread(target=put_off, name="stall watchdog", daemon=True).start()
