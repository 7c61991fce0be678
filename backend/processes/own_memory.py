"""The memory of a process."""

from __future__ import annotations

import contextlib

import psutil


def resident_bytes(process: psutil.Process | None = None) -> int:
    """Return the memory of a process (None: of this one) with all its children.

    Shared memory, such as libraries, counts for each of them.

    Raises:
        psutil.Error: The process has ended.
    """
    own = process or psutil.Process()
    total = 0
    for one in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    return total
