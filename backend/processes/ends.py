"""How long processes wait for each other's end, and how without looking again and again."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack

JOBS_STOP_SECONDS = 4.0
"""What a pool's jobs have to return to the queue."""
POOLS_STOP_SECONDS = JOBS_STOP_SECONDS + 2.0
"""After this long the scheduler's host kills pools; each of these bounds is longer than what it waits for."""
RAY_STOP_SECONDS = POOLS_STOP_SECONDS + 2.0
"""What pools and their Ray have together."""
TICK_STOP_SECONDS = 4.0
"""What the scheduler's last tick has, before pools are stopped."""
WATCH_SECONDS = 1.0
"""After this long the scheduler's host notices at the latest that it should stop."""
REMAINS_SECONDS = 5.0
"""What killed processes have to be gone."""
GUARDIAN_SECONDS = 2 * REMAINS_SECONDS
"""What a guardian has, which kills what else is left."""
SCHEDULER_STOP_SECONDS = (
    WATCH_SECONDS + TICK_STOP_SECONDS + RAY_STOP_SECONDS + REMAINS_SECONDS + GUARDIAN_SECONDS
)
"""All of the scheduler's host with its Ray."""
SERVICE_STOP_SECONDS = SCHEDULER_STOP_SECONDS + 2.0
"""After this long the supervisor kills everything."""

_LOOK_SECONDS = 0.1
"""Where the kernel does not report ends (macOS, some sandboxes), the caller looks this often."""


def wait_for_end(process_ids: Iterable[int], seconds: float) -> bool:
    """Return when one of the processes has ended, a signal has arrived, or `seconds` are over.

    False means that none has ended; True that the caller should look. Call it from the main thread, which
    receives the signals. One that arrives just before this call is noticed only when the time is over.
    """
    with ExitStack() as opened:
        events = select.poll()
        for process_id in process_ids:
            try:
                descriptor = os.pidfd_open(process_id)
            except ProcessLookupError:
                return True
            except (AttributeError, OSError):
                time.sleep(min(seconds, _LOOK_SECONDS))
                return True
            opened.callback(os.close, descriptor)
            events.register(descriptor, select.POLLIN)
        # Waiting goes on after a signal's handler unless something becomes readable.
        signalled, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        opened.callback(os.close, signalled)
        opened.callback(os.close, wake)
        events.register(signalled, select.POLLIN)
        opened.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake, warn_on_full_buffer=False))
        return bool(events.poll(seconds * 1000))
