"""A lock that is handed over in the order in which it was asked for.

Python's own goes to whoever is awake: a thread that releases it and takes it again at once, as the engine
does after each forward, would keep another one out for as long as it has work.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """First come, first served; not reentrant. Used with `with`, or by the place where it has several."""

    def __init__(self, places: int = 1) -> None:
        """Begin free.

        Args:
            places: `with` takes all of them.
        """
        self.places = places
        self._free = places
        self._guard = threading.Lock()
        self._turns: deque[tuple[int, threading.Lock]] = deque()
        """For each waiting thread how many places it wants, and a lock that is held until it has them."""

    @property
    def awaited(self) -> int:
        """How many threads wait for it."""
        return len(self._turns)

    @property
    def wholly_awaited(self) -> bool:
        """Whether somebody waits for all places."""
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
        turn.acquire()

    def take_free(self) -> int:
        """Take all places that are free, for a short while; whoever waits then waits for more than those."""
        with self._guard:
            free, self._free = self._free, 0
            return free

    def give(self, places: int) -> None:
        """Give places back."""
        with self._guard:
            self._free += places
            # Nobody goes before the one whose turn it is, also if that one wants more than is free.
            while self._turns and self._turns[0][0] <= self._free:
                wanted, turn = self._turns.popleft()
                self._free -= wanted
                turn.release()

    def __enter__(self) -> None:
        self.take(self.places)

    def __exit__(self, *exception: object) -> None:
        self.give(self.places)
