"""Threads for large bodies: few at once, and one at a time per tenant."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

Value = TypeVar("Value")


class Turns:
    """A waiting request waits behind at most one request of each other tenant. Belongs to one event loop."""

    def __init__(self, at_once: int) -> None:
        """Run this many at once, for all tenants."""
        self._all = CapacityLimiter(at_once)
        self._of_tenant: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self, tenant_id: str, call: Callable[[], Value]) -> Value:
        """Wait for the tenant's turn and return the result of `call`, run in a thread."""
        async with self._of_tenant[tenant_id]:
            return await to_thread.run_sync(call, limiter=self._all)
