"""How many requests for tokens each tenant has in flight, and how many it may have.

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
    """Requests of one tenant that came together."""

    tenant_id: str
    left: int
    """Not answered yet."""
    by_tenant: Counter[str]

    def answered(self, count: int) -> None:
        """Count requests out."""
        count = min(count, self.left)
        self.left -= count
        self.by_tenant[self.tenant_id] -= count
        if not self.by_tenant[self.tenant_id]:
            del self.by_tenant[self.tenant_id]


class InFlight:
    """Requests under way, by tenant."""

    def __init__(self, most: int) -> None:
        """Allow every tenant `most`, or one batch of any size if it has nothing else in flight."""
        self._most = most
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def entered(self, tenant_id: str, count: int) -> Iterator[Batch]:
        """Count a batch in; what is not answered at the end is counted out then.

        Raises:
            TooManyRequestsError: The tenant has too many already.
        """
        held = self._by_tenant[tenant_id]
        if held and held + count > self._most:
            raise TooManyRequestsError(
                f"{held} of your requests for tokens are in flight, and the service takes {self._most} "
                "at a time",
                hint="send more when some are answered; the operator can raise limits.samples_in_flight",
            )
        self._by_tenant[tenant_id] += count
        batch = Batch(tenant_id, count, self._by_tenant)
        try:
            yield batch
        finally:
            batch.answered(batch.left)
