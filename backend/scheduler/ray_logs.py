"""The logs of Ray's processes: how many of finished processes are kept.

Ray itself limits the size of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

KEPT_FILES = 200
"""Logs of finished processes to keep, newest first: a worker leaves about six."""

_OF_PROCESS = re.compile(r"[-_](\d+)\.(?:out|err|log)(?:\.\d+)?$")
"""The names of a process's logs end with its id."""


def remove_old_logs(ray_dir: Path, alive: Callable[[int], bool] = psutil.pid_exists) -> None:
    """Remove the oldest logs of finished processes, because workers may come and go for months."""
    found: list[tuple[float, Path]] = []
    for file in ray_dir.glob("session_*/logs/**/*"):
        named = _OF_PROCESS.search(file.name)
        if named and not alive(int(named[1])):
            with suppress(OSError):
                found.append((file.stat().st_mtime, file))
    for _, file in sorted(found)[:-KEPT_FILES]:
        with suppress(OSError):
            file.unlink()
