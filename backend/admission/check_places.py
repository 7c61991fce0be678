"""Places for the processes of job checks, shared fairly between tenants. Knows nothing of the checks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from backend.fairness.fair_places import FairPlaces
from tinkergym.errors import ServiceUnavailableError


class CheckPlaces:
    """A tenant has at most half of the places; the one with the fewest comes first. Thread-safe."""

    def __init__(self, places: int) -> None:
        """Admit this many at once."""
        self._fair = FairPlaces(places, most_of_one=max(1, places // 2))
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, tenant_id: str, seconds: float) -> Iterator[None]:
        """Hold a place.

        Args:
            tenant_id: Whose place it is.
            seconds: How long to wait for one.

        Raises:
            ServiceUnavailableError: There was none in this time.
        """
        with self._changed:
            number = next(self._numbers)
            self._fair.add(number, tenant_id)
            self._fair.admit()
            if not self._changed.wait_for(lambda: self._fair.inside(number), seconds):
                self._leave(number)
                raise ServiceUnavailableError(
                    "too many jobs are being checked at the moment", hint="try again"
                )
        try:
            yield
        finally:
            with self._changed:
                self._leave(number)

    def _leave(self, number: int) -> None:
        self._fair.remove(number)
        self._fair.admit()
        self._changed.notify_all()
