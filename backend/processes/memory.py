"""The memory of this machine and of processes, and how this process returns what it does not use."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
from contextlib import suppress
from pathlib import Path

import psutil

_log = logging.getLogger(__name__)

OUT_OF_MEMORY = "out_of_memory"
"""The code of errors whose cause is that a process may not have more memory."""
# torch has a type for this on GPUs only; on CPUs its allocator raises a RuntimeError with one of these texts.
# A rank and vLLM report the name of a type instead.
_ALLOCATOR_SAYS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "memoryerror",
    "outofmemoryerror",
)
_NO_THREAD = "can't start new thread"

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


def ran_out_of_memory(error: Exception) -> bool:
    """Whether something failed because this or a reporting process may not have more memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in _ALLOCATOR_SAYS)
    )


def code_of(error: Exception) -> str:
    """Return `OUT_OF_MEMORY` if that is why something failed; else nothing, for its type's own code."""
    return OUT_OF_MEMORY if ran_out_of_memory(error) else ""


def end_if_exhausted(error: Exception) -> None:
    """End this process if what failed needs hardly any memory, and did not get it.

    Another process then takes its place, and a pool's jobs resume there. Otherwise it would go on to listen,
    and all that it is given would fail. For small allocations only: a large one may fail alone.
    """
    if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
        _log.critical("this process has no memory left and ends; another takes its place: %r", error)
        # Not an exception: other threads would go on, and ends in order need memory.
        os._exit(1)


def give_memory_back() -> None:
    """Return freed memory of this process to the system, including reference cycles."""
    gc.collect()
    # glibc keeps freed memory for later allocations, and pool workers tell it to keep a lot.
    with suppress(OSError, AttributeError):  # A different C library.
        ctypes.CDLL(None).malloc_trim(0)
