"""When a pool without work gives memory back. Pure: time and what the pool does arrive as arguments."""

from __future__ import annotations


class Rest:
    """Says once, after a while without work, that it is time to rest; the next work begins a new while."""

    def __init__(self, after_seconds: float, now: float) -> None:
        """Begin to wait; all times are seconds on one monotonic clock."""
        self._after_seconds = after_seconds
        self._worked_at = now
        self._resting = False

    def worked(self, now: float) -> None:
        """Note that the pool has, or just had, something to do."""
        self._worked_at, self._resting = now, False

    def is_due(self, now: float) -> bool:
        """Say whether to rest now: true once, until the pool has worked again."""
        if self._resting or now - self._worked_at < self._after_seconds:
            return False
        self._resting = True
        return True
