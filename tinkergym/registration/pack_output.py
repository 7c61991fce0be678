"""What packs print goes to stderr, so that stdout belongs to the program that plays them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_depths: dict[int, int] = {}
"""How deeply each thread is in `output_to_stderr`."""


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send what this thread prints to stderr; other threads keep their stdout.

    Not `contextlib.redirect_stdout`, which moves the output of all threads, and leaves it there if two of
    them end in another order than they began.
    """
    me = threading.get_ident()
    with _lock:
        _depths[me] = _depths.get(me, 0) + 1
        if sys.stdout is not None and sys.stderr is not None and not isinstance(sys.stdout, _ByThread):
            sys.stdout = _ByThread(sys.stdout)
    try:
        yield
    finally:
        with _lock:
            _depths[me] -= 1
            if not _depths[me]:
                del _depths[me]
            if not _depths and isinstance(sys.stdout, _ByThread):
                sys.stdout = sys.stdout.real


class _ByThread:
    """Stands for stdout; passes everything on to stderr for threads that are inside, else to stdout."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if threading.get_ident() in _depths else self.real, name)
