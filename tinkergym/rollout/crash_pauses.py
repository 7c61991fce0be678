"""How long to wait before a process of an environment is started again that keeps dying.

Pure bookkeeping. Knows no processes; time arrives as a clock.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 8.0


class CrashPauses:
    """A pause per environment, which doubles with each crash after it and ends with the first success."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without pauses.

        Args:
            clock: Seconds, monotonic.
        """
        self._clock = clock
        self._pauses: dict[str, tuple[float, float]] = {}
        """By environment: the seconds of the last pause, and when it ends."""

    def crashed(self, key: str) -> None:
        """Note that a process of the environment died. Those that die during a pause do not lengthen it."""
        now = self._clock()
        seconds, ends_at = self._pauses.get(key, (_FIRST_SECONDS / 2, now))
        if now >= ends_at:
            seconds = min(2 * seconds, _LONGEST_SECONDS)
            self._pauses[key] = seconds, now + seconds

    def went_well(self, key: str) -> None:
        """Note that an episode of the environment ended without a crash."""
        self._pauses.pop(key, None)

    def holds_back(self, key: str, *, being_tried: bool) -> bool:
        """Return whether no other process may be started now.

        Args:
            key: Which environment.
            being_tried: Whether an episode of it is being played: how that ends is waited for.
        """
        pause = self._pauses.get(key)
        return pause is not None and (being_tried or self._clock() < pause[1])
