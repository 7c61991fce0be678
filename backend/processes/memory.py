"""The memory of this machine and of processes, and how this process returns what it does not use."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def resident_bytes(process: psutil.Process | None = None) -> int:
    """Return the memory of a process (None: of this one) with all its children.

    Shared memory, such as libraries, counts for each of them.

    Raises:
        psutil.Error: The process has ended.
    """
    own = process or psutil.Process()
    total = 0
    for one in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            total += one.memory_info().rss
    return total


def machine_bytes(limit: Path = _CGROUP_LIMIT) -> int:
    """Return the amount of memory; in a container, the one in the file `limit`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # Not in a container, or without a limit.
        memory = min(memory, int(limit.read_text()))
    return memory


def give_memory_back() -> None:
    """Return freed memory of this process to the system, including reference cycles."""
    gc.collect()
    # glibc keeps freed memory for later allocations, and pool workers tell it to keep a lot.
    with suppress(OSError, AttributeError):  # A different C library.
        ctypes.CDLL(None).malloc_trim(0)
