"""A lock that is handed over in the order in which it was asked for.

Python's own goes to whoever is awake: a thread that releases it and takes it again at once, as the engine
does after each forward, would keep another one out for as long as it has work.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """First come, first served; not reentrant. Used with `with`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._turns: deque[threading.Lock] = deque()
        """One for each waiting thread, locked until it is that thread's turn."""

    @property
    def awaited(self) -> int:
        """How many threads wait for it."""
        return len(self._turns)

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        turn.acquire()

    def __exit__(self, *exception: object) -> None:
        with self._guard:
            if self._turns:
                # It stays held: nobody who asks now comes before the one whose turn it is.
                self._turns.popleft().release()
            else:
                self._held = False
