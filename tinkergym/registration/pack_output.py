"""Output of packs goes to stderr, so that stdout belongs to the program that plays them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_depths: dict[int, int] = {}
"""Nesting depth of `output_to_stderr`, by thread."""


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send this thread's output to stderr; other threads keep their stdout.

    Not `contextlib.redirect_stdout`, which redirects all threads, and does not restore stdout if two of them
    end in a different order than they began.
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
    """Replaces stdout; passes writes to stderr for threads that are inside, else to stdout."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if threading.get_ident() in _depths else self.real, name)
