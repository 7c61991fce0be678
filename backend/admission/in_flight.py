"""Sampling requests of each tenant in flight, and their limit.

Belongs to one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tinkergym.errors import TooManyRequestsError


@dataclass(slots=True)
class Batch:
    """Requests of one tenant that arrived together."""

    tenant_id: str
    left: int
    """Number of unanswered requests."""
    by_tenant: Counter[str]

    def answered(self, count: int) -> None:
        """Count finished requests."""
        count = min(count, self.left)
        self.left -= count
        self.by_tenant[self.tenant_id] -= count
        if not self.by_tenant[self.tenant_id]:
            del self.by_tenant[self.tenant_id]


class InFlight:
    """Requests in flight, by tenant."""

    def __init__(self, most: int) -> None:
        """Allow every tenant `most`, or one batch of any size if it has nothing else in flight."""
        self._most = most
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def entered(self, tenant_id: str, count: int) -> Iterator[Batch]:
        """Count a batch in; unanswered requests are counted out at the end.

        Raises:
            TooManyRequestsError: The tenant has too many already.
        """
        held = self._by_tenant[tenant_id]
        if held and held + count > self._most:
            raise TooManyRequestsError(
                f"{held} of your sampling requests are in flight, and the service allows {self._most} at a "
                f"time",
                hint="send more when some have finished; the operator can raise limits.samples_in_flight",
            )
        self._by_tenant[tenant_id] += count
        batch = Batch(tenant_id, count, self._by_tenant)
        try:
            yield batch
        finally:
            batch.answered(batch.left)
