"""How much memory this machine has, and how this process gives back what it no longer uses."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """Return how much memory there is; in a container, what the container may have."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        memory = min(memory, int(_CGROUP_LIMIT.read_text()))
    return memory


def give_memory_back() -> None:
    """Return to the system what this process has freed, tensors in circles of references included."""
    gc.collect()
    # glibc keeps what was freed for the next allocation, and pool workers tell it to keep much.
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
