"""Threads for large bodies: few at a time, and of each tenant one after the other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

Value = TypeVar("Value")


class Turns:
    """Who waits for a thread waits behind one request of each other tenant. Belongs to one event loop."""

    def __init__(self, at_once: int) -> None:
        """Run so many at a time, whosoever they are."""
        self._all = CapacityLimiter(at_once)
        self._of_tenant: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self, tenant_id: str, call: Callable[[], Value]) -> Value:
        """Wait for the tenant's turn and return what `call` does, in a thread."""
        async with self._of_tenant[tenant_id]:
            return await to_thread.run_sync(call, limiter=self._all)
