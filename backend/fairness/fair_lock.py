"""A lock that is acquired in the order of requests.

Python's own lock goes to whichever thread is awake: one that releases it and takes it again at once, as the
engine does after each forward pass, would block another one for as long as it has work.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """First come, first served; not reentrant. Used with `with`, or by place if it has several."""

    def __init__(self, places: int = 1) -> None:
        """Start free.

        Args:
            places: `with` takes all of them.
        """
        self.places = places
        self._free = places
        self._guard = threading.Lock()
        self._turns: deque[tuple[int, threading.Lock]] = deque()
        """For each waiting thread the number of places it needs, and a lock that is held until it has
        them."""

    @property
    def awaited(self) -> int:
        """The number of waiting threads."""
        return len(self._turns)

    @property
    def wholly_awaited(self) -> bool:
        """Whether a thread waits for all places."""
        with self._guard:
            return any(wanted == self.places for wanted, _ in self._turns)

    def take(self, places: int) -> None:
        """Wait for some of the places."""
        with self._guard:
            if places <= self._free and not self._turns:
                self._free -= places
                return
            turn = threading.Lock()
            turn.acquire()
            self._turns.append((places, turn))
        # Without the guard, which `give` needs.
        turn.acquire()

    def take_free(self) -> int:
        """Take all free places for a short time; waiting threads then wait for more than those."""
        with self._guard:
            free, self._free = self._free, 0
            return free

    def give(self, places: int) -> None:
        """Release places."""
        with self._guard:
            self._free += places
            # No thread overtakes the first one, even if that one needs more than is free.
            while self._turns and self._turns[0][0] <= self._free:
                wanted, turn = self._turns.popleft()
                self._free -= wanted
                turn.release()

    def __enter__(self) -> None:
        self.take(self.places)

    def __exit__(self, *exception: object) -> None:
        self.give(self.places)
