"""Records which episodes are inside a call of their environment, in a file that survives the process.

Foreign code can end its process without warning: a segmentation fault, `os._exit`, the kernel's out-of-memory
killer. The process that notices reads here which episodes may be the cause.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SLOTS = 2048
_SLOT_BYTES = 128
"""One byte for the length of the name, which must fit into it, and the name."""


class CallRegister:
    """Written by the process that makes the calls. The contents survive its death."""

    def __init__(self, path: Path) -> None:
        """Create the file without any calls."""
        with path.open("wb+") as file:
            file.truncate(_SLOTS * _SLOT_BYTES)
            self._memory = mmap.mmap(file.fileno(), _SLOTS * _SLOT_BYTES)
        self._lock = threading.Lock()
        self._free = list(range(_SLOTS))

    @contextmanager
    def during(self, episode_id: str) -> Iterator[None]:
        """Name the episode in the file while the block runs."""
        slot = self._take(episode_id.encode()[: _SLOT_BYTES - 1])
        try:
            yield
        finally:
            if slot is not None:
                self._memory[slot * _SLOT_BYTES] = 0
                with self._lock:
                    self._free.append(slot)

    def _take(self, name: bytes) -> int | None:
        with self._lock:
            slot = self._free.pop() if self._free else None  # More threads than slots: one goes unnamed.
        if slot is not None:
            start = slot * _SLOT_BYTES
            self._memory[start + 1 : start + 1 + len(name)] = name
            self._memory[start] = len(name)  # Written last: a name counts only once it is complete.
        return slot


def episodes_in_calls(path: Path) -> list[str]:
    """Return the episodes that were in a call when the writing process died; empty without a file."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    slots = (content[start : start + _SLOT_BYTES] for start in range(0, len(content), _SLOT_BYTES))
    return [slot[1 : 1 + slot[0]].decode("utf-8", "replace") for slot in slots if slot[0]]
