"""Which workers were heard from lately, and which of them played at the same time. Time is an argument."""

from __future__ import annotations

import math


class HeardWorkers:
    """The workers of one job of the last few seconds."""

    def __init__(self, seconds: float) -> None:
        """Forget a worker that is silent for so long."""
        self._seconds = seconds
        self._last_seen: dict[str, float] = {}
        """The longest silent first."""
        self._first_seen: dict[str, float] = {}
        """The same workers."""

    def __len__(self) -> int:
        return len(self._last_seen)

    def last_seen(self, worker_id: str) -> float:
        """Return when a worker was heard from last; 0 for an unknown one."""
        return self._last_seen.get(worker_id, 0.0)

    def note(self, worker_id: str, now: float) -> None:
        """Record that a worker was heard from."""
        # Clients choose their ids and may use a new one for every call, so old ones are dropped.
        self._last_seen.pop(worker_id, None)
        self._last_seen[worker_id] = now
        self._first_seen.setdefault(worker_id, now)
        while now - self._last_seen[oldest := next(iter(self._last_seen))] >= self._seconds:
            self.forget(oldest)

    def forget(self, worker_id: str) -> None:
        """Record that a worker has ended."""
        self._last_seen.pop(worker_id, None)
        self._first_seen.pop(worker_id, None)

    @property
    def concurrent(self) -> list[str]:
        """Those that were heard from while another one was, too.

        One that took over from a dead one was not: the dead one is not heard from after that.
        """
        found, until, longest = set[str](), -math.inf, ""
        # Sorted, because there may be many: each is compared only with the one heard from last so far.
        for first, name in sorted((first, name) for name, first in self._first_seen.items()):
            if first <= until:
                found |= {name, longest}
            if (last := self._last_seen[name]) > until:
                until, longest = last, name
        return [name for name in self._last_seen if name in found]
