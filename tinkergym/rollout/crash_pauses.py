"""How long to wait before restarting the process of an environment that keeps crashing.

Pure bookkeeping: does not know processes, and time comes from a clock.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 8.0


class CrashPauses:
    """A pause per environment, which doubles with each further crash and ends with the first success."""

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
