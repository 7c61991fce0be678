"""Threads for work that takes long: few at once, and fewer per tenant."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

Value = TypeVar("Value")


class FairThreads:
    """A waiting request waits behind few requests of each other tenant. Belongs to one event loop."""

    def __init__(self, at_once: int, *, of_tenant: int = 1) -> None:
        """Run this many at once: `at_once` for all tenants, `of_tenant` for each."""
        self._all = CapacityLimiter(at_once)
        self._of_tenant: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(of_tenant)
        )

    async def run(
        self, tenant_id: str, call: Callable[[], Value], *, abandon_on_cancel: bool = False
    ) -> Value:
        """Wait for the tenant's turn and return the result of `call`, run in a thread.

        Args:
            tenant_id: Whose turn it is.
            call: What to run.
            abandon_on_cancel: Whether a cancelled caller leaves the thread alone instead of waiting for it.
        """
        async with self._of_tenant[tenant_id]:
            return await to_thread.run_sync(call, limiter=self._all, abandon_on_cancel=abandon_on_cancel)
