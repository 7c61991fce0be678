"""Waiting times between retries. Independent of what is retried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


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
