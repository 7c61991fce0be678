"""Since when parts of the service have been missing, as seen by this gateway."""

from __future__ import annotations

from collections.abc import Sequence


class Missing:
    """Call it at least every second, as the supervisor does by requesting health."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, names: Sequence[str], now: float) -> dict[str, float]:
        """Record what is missing now; return since when."""
        self._since = {name: self._since.get(name, now) for name in names}
        return self._since
