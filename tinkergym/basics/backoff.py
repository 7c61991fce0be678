"""Waiting times between tries that fail: of requests, and of the processes of environments that crash.

Independent of what is tried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 8.0
"""Pauses after crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double from `first_seconds` to `most_seconds`, until `patience_seconds` are used up.

    Each wait is shortened by a random fraction of up to a half, so that many workers do not retry together.
    """

    patience_seconds: float
    first_seconds: float = 0.1
    most_seconds: float = 5.0
    sleep: Callable[[float], object] = time.sleep
    """May be a stop event's `wait`: then a stop ends the wait early."""

    def waits(self) -> Iterator[float]:
        """Sleep, then yield the time slept; ends when the patience is used up.

        Only waiting counts against the patience, not the tries in between.
        """
        slept, step = 0.0, self.first_seconds
        while slept < self.patience_seconds:
            seconds = min(step, self.patience_seconds - slept) * random.uniform(0.5, 1.0)
            self.sleep(seconds)
            # In full, so that chance does not change the number of tries.
            slept += min(step, self.patience_seconds - slept)
            step = min(2 * step, self.most_seconds)
            yield seconds


class CrashPauses:
    """How long to wait before restarting the process of an environment that keeps crashing.

    A pause per environment, which doubles with each further crash and ends with the first success.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without pauses.

        Args:
            clock: Seconds, monotonic.
        """
        self._clock = clock
        self._pauses: dict[str, tuple[float, float]] = {}
        """By environment: the seconds of the last pause, and when it ends."""

    def crashed(self, key: str) -> None:
        """Record a crash. Crashes during a pause do not lengthen it."""
        now = self._clock()
        seconds, ends_at = self._pauses.get(key, (_FIRST_SECONDS / 2, now))
        if now >= ends_at:
            seconds = min(2 * seconds, _LONGEST_SECONDS)
            self._pauses[key] = seconds, now + seconds

    def went_well(self, key: str) -> None:
        """Record that an episode of the environment ended without a crash."""
        self._pauses.pop(key, None)

    def holds_back(self, key: str, *, being_tried: bool) -> bool:
        """Return whether no other process may be started now.

        Args:
            key: The environment.
            being_tried: Whether an episode of it is being played; its outcome is awaited.
        """
        pause = self._pauses.get(key)
        return pause is not None and (being_tried or self._clock() < pause[1])
