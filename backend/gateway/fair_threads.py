"""Threads for work that takes long: few at once, fewer per tenant, and each with a deadline."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from tinkergym.errors import ServiceUnavailableError

Value = TypeVar("Value")


class FairThreads:
    """A waiting request waits behind few requests of each other tenant. Belongs to one event loop.

    A thread cannot be ended: one that outlasts its deadline counts against its own tenant until it ends, and
    no longer against all. Work that can hold Python's lock for long needs a process instead.
    """

    def __init__(self, at_once: int, *, of_tenant: int = 1, seconds: float) -> None:
        """Run few calls at once.

        Args:
            at_once: How many of all tenants.
            of_tenant: How many of each tenant.
            seconds: How long a call may run.
        """
        self._all = asyncio.Semaphore(at_once)
        self._of_tenant: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(of_tenant)
        )
        self._seconds = seconds
        self._threads = CapacityLimiter(inf)  # The semaphores count them.

    async def run(
        self, tenant_id: str, call: Callable[[], Value], *, abandon_on_cancel: bool = False
    ) -> Value:
        """Wait for the tenant's turn and return the result of `call`, run in a thread.

        Args:
            tenant_id: Whose turn it is.
            call: What to run.
            abandon_on_cancel: Whether a cancelled caller leaves the thread alone instead of waiting for it.

        Raises:
            ServiceUnavailableError: The call has not returned in time; it goes on.
        """
        own = self._of_tenant[tenant_id]
        await own.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            own.release()
            raise
        # Tasks of their own: a cancelled caller does not release places whose thread still runs.
        work = asyncio.ensure_future(to_thread.run_sync(call, limiter=self._threads))
        work.add_done_callback(lambda done: _release(own, done))
        in_time = asyncio.ensure_future(asyncio.wait({work}, timeout=self._seconds))
        in_time.add_done_callback(lambda done: _release(self._all, done))
        with CancelScope(shield=not abandon_on_cancel):
            await asyncio.shield(in_time)
        if not work.done():
            raise ServiceUnavailableError(
                f"the service did not finish this within {self._seconds:g} s", hint="try again with less"
            )
        return work.result()


def _release(places: asyncio.Semaphore, done: asyncio.Future[Any]) -> None:
    places.release()
    if not done.cancelled():
        done.exception()  # Seen, or asyncio logs an exception that was never retrieved.
