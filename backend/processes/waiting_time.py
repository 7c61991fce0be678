"""How long a process waited for a core: on a busy machine everything is slow, and nothing is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil


def waited_seconds(pid: int) -> float:
    """Return how long the main thread of a process, or of one of its children, was ready but had no core.

    The longest of them; 0 if the system does not tell, as macOS.
    """
    pids = [pid]
    with suppress(psutil.Error):
        pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return max(map(_waited, pids))


def _waited(pid: int) -> float:
    try:
        # Nanoseconds on a core and waiting for one, and how often it got one.
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
