"""Rings between the endpoint, where calls of policies arrive, and the loops that execute them."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable


class CallBell:
    """One bell for all policies of a pool: there are few, and each checks whether it is meant."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._rung = 0
        self._done: dict[str, int] = {}
        """Number of the last finished call, by policy."""
        self._sampled: dict[str, float] = {}
        """When a policy that is trained here was last sampled."""
        self._forgotten: Counter[str] = Counter()
        """How often each policy was forgotten."""

    def ring(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._rung += 1
            self._changed.notify_all()

    def done(self, policy: str, seq: int) -> None:
        """Record that a policy's calls up to `seq` are done and stored."""
        with self._changed:
            self._done[policy] = seq
            self._changed.notify_all()

    def forget(self, policy: str) -> None:
        """Forget a policy that is no longer trained here: calls executed elsewhere are unknown.

        Who waits for one of its calls looks into the store, which may have the result.
        """
        with self._changed:
            self._forgotten[policy] += 1
            self._changed.notify_all()
            self._done.pop(policy, None)
            self._sampled.pop(policy, None)

    def sampled(self, policy: str) -> None:
        """Record that a policy is being sampled, if it is trained here by calls."""
        with self._changed:
            if policy in self._done:
                self._sampled[policy] = self._clock()

    def last_sampled(self, policy: str) -> float:
        """Return when a policy was last sampled; minus infinity if it was not."""
        return self._sampled.get(policy, -math.inf)

    @property
    def rung(self) -> int:
        """How often it rang; see `wait`."""
        return self._rung

    def wait(self, rung: int, seconds: float) -> None:
        """Wait until it rang more often than `rung`, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._rung > rung, seconds)

    def wait_until_done(self, policy: str, seq: int, seconds: float) -> None:
        """Ring; wait until a policy's calls up to `seq` are done or it is forgotten, at most `seconds`."""
        with self._changed:
            self._rung += 1
            self._changed.notify_all()
            # A count and no flag: it may be forgotten, and trained here again, before this thread runs.
            before = self._forgotten[policy]
            self._changed.wait_for(
                lambda: self._done.get(policy, 0) >= seq or self._forgotten[policy] > before, seconds
            )
