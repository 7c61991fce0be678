"""The memory of this process."""

from __future__ import annotations

import contextlib

import psutil


def resident_bytes() -> int:
    """Return the memory of this process with all its children.

    Shared memory, such as libraries, counts for each of them.
    """
    own = psutil.Process()
    total = 0
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total
