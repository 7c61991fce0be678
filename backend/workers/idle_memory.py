"""When an idle pool frees memory. Pure: time and activity are arguments."""

from __future__ import annotations


class Rest:
    """Reports once, after some idle time, that it is time to rest; the next work starts a new period."""

    def __init__(self, after_seconds: float, now: float) -> None:
        """Start waiting; all times are seconds on one monotonic clock."""
        self._after_seconds = after_seconds
        self._worked_at = now
        self._resting = False

    def worked(self, now: float) -> None:
        """Record that the pool has, or just had, work."""
        self._worked_at, self._resting = now, False

    def is_due(self, now: float) -> bool:
        """Whether to rest now: true once, until the pool has worked again."""
        if self._resting or now - self._worked_at < self._after_seconds:
            return False
        self._resting = True
        return True
