"""The memory of this machine and of processes, and how this process returns what it does not use."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_TELLS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Whether the kernel lists a process's children, as nearly every Linux does."""


def resident_bytes(process_id: int | None = None) -> int:
    """Return the memory of a process (None: of this one) with all its children; 0 if it has ended.

    Shared memory, such as libraries, counts for each of them.
    """
    root, total = process_id or os.getpid(), 0
    for one in _family(root) if _TELLS_CHILDREN else _family_among_all(root):
        with suppress(psutil.Error):
            total += psutil.Process(one).memory_info().rss
    return total


def _family(root: int) -> list[int]:
    """Return a process and its descendants, as the kernel lists them."""
    found = [root]
    for one in found:
        with suppress(OSError):  # It has just ended.
            for thread in os.listdir(f"/proc/{one}/task"):  # noqa: PTH208 - pathlib takes three times as long
                path = f"/proc/{one}/task/{thread}/children"
                with suppress(OSError), open(path, "rb") as children:  # noqa: PTH123 - as above
                    found += map(int, children.read().split())
    return found


def _family_among_all(root: int) -> list[int]:
    """Return the same by asking every process of the machine for its parent."""
    with suppress(psutil.Error):
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    return []


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
