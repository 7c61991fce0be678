"""Data that is read once per process and shared by all sources with the same name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from tinkergym.basics.bounded_dict import BoundedDict

T = TypeVar("T")

_MOST = 16
"""The number of unused datasets that are kept, for environments that come and go."""


class _Slot:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.filled = False


_lock = threading.Lock()
_slots: BoundedDict[Hashable, _Slot] = BoundedDict(_MOST)


def shared(key: Hashable, load: Callable[[], T]) -> T:
    """Return the result of `load` for this key, from here or another thread. Failures are not cached."""
    with _lock:
        slot = _slots.setdefault(key, _Slot())
    # Each has its own lock: what takes minutes to load does not hold up the others.
    with slot.lock:
        if not slot.filled:
            slot.value, slot.filled = load(), True
        value: T = slot.value
        return value


def file_key(path: Path) -> tuple[str, int, int]:
    """Return a file's identity while it is unchanged: path, modification time and size."""
    stat = path.stat()
    return str(path.resolve()), stat.st_mtime_ns, stat.st_size


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _lock = threading.Lock()
    _slots.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
