"""A process that cannot have more memory: its errors say so, and it ends when hardly any is left.

Otherwise it would go on to listen, and everything that it is given would fail. Another takes its place, and a
pool's jobs resume in it. Memory that only one piece of work wanted and did not get ends nothing: it is free
again.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable

_log = logging.getLogger(__name__)

OUT_OF_MEMORY = "out_of_memory"
"""The code of errors whose cause is missing memory."""

# torch has a type for this on GPUs only; on CPUs its allocator raises a RuntimeError with one of these texts.
# Ranks and vLLM report the name of a type instead.
_TEXTS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "memoryerror",
)
_NO_THREAD = "can't start new thread"
_SPARE_BYTES = 64 * 2**20
"""With less than this a process cannot do what it is for."""

_ending = False


def end_when_exhausted() -> None:
    """Let `end_if_exhausted` end this process from now on; for one that is replaced when it ends."""
    global _ending  # noqa: PLW0603 - once, by the process's main function
    _ending = True


def says_out_of_memory(text: str) -> bool:
    """Whether an allocator's or another process's message is about missing memory."""
    return any(words in text.lower() for words in _TEXTS)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether something failed because this process or its GPU has no more memory."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(ran_out_of_memory, error.exceptions))
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and says_out_of_memory(str(error))
    )


def out_of_memory_code(error: BaseException) -> str:
    """Return `OUT_OF_MEMORY` if that is why something failed; else nothing, for its type's own code."""
    return OUT_OF_MEMORY if ran_out_of_memory(error) else ""


def _is_exhausted(error: BaseException) -> bool:
    """Whether this process is one that is replaced, and has no memory left, as `error` suggests."""
    # A thread needs memory, too, but may also be missing because of a limit for threads.
    suggests = ran_out_of_memory(error) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)
    return _ending and suggests and not _has_spare_memory()


def end_if_exhausted(error: BaseException, *, first: Callable[[], object] = lambda: None) -> None:
    """End this process if it has no memory left; its jobs and requests are treated as after a kill.

    Args:
        error: What failed.
        first: What to do before the end, if it comes.
    """
    if not _is_exhausted(error):
        return
    try:
        first()
        _log.critical("this process has no memory left and ends; another takes its place", exc_info=error)
    finally:
        # Not an exception: other threads would go on, and an orderly end needs memory.
        os._exit(1)


def _has_spare_memory() -> bool:
    try:
        mmap.mmap(-1, _SPARE_BYTES).close()  # Only reserved, so this costs nothing.
    except (OSError, MemoryError):
        return False
    return True
