"""How much more each tenant may store before everything it has is listed again. Knows nothing of files."""

from __future__ import annotations

import threading

_SHARE = 8
"""After listing all files, a process may add new ones up to this fraction of the room that is left before it
lists them again. So up to 8 processes stay within the limit together.
"""


class QuotaRoom:
    """How many more files of each tenant this process may add without listing them all again.

    Thread-safe. Each process that adds files of a kind has one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[tuple[str, int], tuple[int, int]] = {}
        """By tenant and limit: bytes and files."""

    def take(self, tenant_id: str, limit: int, size: int) -> bool:
        """Reserve room for a file; return False if there is not enough."""
        with self._lock:
            size_left, files_left = self._left.get((tenant_id, limit), (0, 0))
            if size > size_left or files_left < 1:
                return False
            self._left[tenant_id, limit] = size_left - size, files_left - 1
            return True

    def seen(self, tenant_id: str, limit: int, *, size_left: int, files_left: int) -> None:
        """Note how much room a listing of all files found."""
        with self._lock:
            self._left[tenant_id, limit] = size_left // _SHARE, files_left // _SHARE
