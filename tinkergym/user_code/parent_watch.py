"""A process that runs users' code ends with the process that started it.

Imports nothing from tinkergym, so `bridges/verifiers_worker.py` can load it where tinkergym is not installed.
"""

from __future__ import annotations

import os
import threading
import time

_WATCH_SECONDS = 1.0


def end_with_parent() -> None:
    """Exit when the parent process has ended, whatever this process is doing then."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
