"""One log for the scheduler's host and the processes below its own Ray.

Ray would copy their output, with a process that looks at all of their files ten times a second.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

VARIABLE = "TINKERGYM_HOST_LOG"
"""Environment variable inherited by everything below Ray: where the host's standard error is opened again."""

_HOW = os.O_WRONLY | os.O_APPEND


def share_log() -> bool:
    """Let processes below this one write to its standard error; False where it cannot be opened again."""
    path = f"/proc/{os.getpid()}/fd/2"
    try:
        os.close(os.open(path, _HOW))
    except OSError:
        return False
    os.environ[VARIABLE] = path
    return True


def log_to_host() -> None:
    """Let this process's messages, and what its libraries print, appear in the host's log.

    Where the log is not shared, Ray brings there what is printed.
    """
    path = os.environ.get(VARIABLE)
    with suppress(OSError):
        if path:
            log = os.open(path, _HOW)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
