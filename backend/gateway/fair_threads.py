"""Threads for work that takes long: few at once, fewer per tenant, and each with a deadline.

Routes that block run in them, instead of in any. So does every use of the store by a route that does not: the
disk may hang, and the event loop must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

from anyio import CancelScope
from fastapi import Request, Response
from fastapi.routing import APIRoute

from backend.fairness.fair_places import FairPlaces
from backend.fairness.turns import Turns
from backend.processes.exhaustion import end_if_exhausted
from backend.store.read_cache import NotCachedError, cached_only
from tinkergym.errors import ServiceUnavailableError

Inputs = ParamSpec("Inputs")
Value = TypeVar("Value")

TOO_LONG = "took_too_long"
"""The code of the error for a call that has begun and not returned in time."""

_UNLIMITED = 2**15
"""The places count the threads; an executor wants a number."""
_LARGE_BYTES = 1 << 16


class FairThreads:
    """A waiting request waits behind few requests of each other tenant. Belongs to one event loop.

    A thread cannot be ended: one that outlasts its deadline counts against its own tenant until it ends, and
    no longer against all. Work that can hold Python's lock for long needs a process instead. Close it when no
    more requests come.
    """

    def __init__(self, at_once: int, *, of_tenant: int = 1, seconds: float) -> None:
        """Run few calls at once.

        Args:
            at_once: How many of all tenants.
            of_tenant: How many of each tenant.
            seconds: How long a call may wait for its turn, and how long it may then run.
        """
        self._turns = Turns(FairPlaces(at_once, most_of_one=of_tenant))
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_UNLIMITED, thread_name_prefix="gateway")

    def close(self) -> None:
        """Let the threads end as soon as they have nothing to do; waits for none."""
        self._threads.shutdown(wait=False)

    async def run(
        self, tenant_id: str, call: Callable[[], Value], *, abandon_on_cancel: bool = False
    ) -> Value:
        """Wait for the tenant's turn and return the result of `call`, run in a thread.

        Args:
            tenant_id: Whose turn it is.
            call: What to run.
            abandon_on_cancel: Whether a cancelled caller leaves the thread alone instead of waiting for it.

        Raises:
            ServiceUnavailableError: The call has not begun or not returned in time; if it has begun, it goes
                on.
        """
        number = self._turns.enter_now(tenant_id)
        if number is None:
            number = await self._wait(tenant_id)
        loop = asyncio.get_running_loop()
        # A future of its own, not awaited: a cancelled caller does not give back the place of a thread that
        # still runs.
        try:
            work = loop.run_in_executor(self._threads, copy_context().run, call)
        except RuntimeError as error:
            end_if_exhausted(error)
            self._turns.leave(number)
            raise ServiceUnavailableError(
                f"the service cannot start a thread: {error}", hint="try again"
            ) from error
        # One timer and one future instead of `asyncio.wait`: most requests come through here.
        over: asyncio.Future[None] = loop.create_future()

        def outstays() -> None:
            self._turns.outstay(number)
            _settle(over)

        def ended(done: asyncio.Future[Value]) -> None:
            overdue.cancel()
            self._turns.leave(number)
            if not done.cancelled():
                done.exception()  # Seen, or asyncio logs an exception that was never retrieved.
            _settle(over)

        overdue = loop.call_later(self._seconds, outstays)
        work.add_done_callback(ended)
        with CancelScope(shield=not abandon_on_cancel):
            await over
        if not work.done():
            raise ServiceUnavailableError(
                f"the service did not finish this within {self._seconds:g} s",
                hint="try again with less",
                code=TOO_LONG,
            )
        return work.result()

    def soon(self, call: Callable[[], object]) -> None:
        """Run what no request waits for and no tenant may delay, in a thread that counts against none."""
        with suppress(RuntimeError):  # It cannot start a thread.
            self._threads.submit(call)

    async def _wait(self, tenant_id: str) -> int:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._turns.enter(tenant_id)
        except TimeoutError:
            raise ServiceUnavailableError(
                f"your other requests have kept the service busy for {self._seconds:g} s",
                hint="try again, with fewer at once",
            ) from None


_threads: ContextVar[FairThreads] = ContextVar("threads")
"""Of the gateway that answers the present request."""


class FairRoute(APIRoute):
    """The route class of all routers. It changes plain functions only; their `tenant` says whose they are."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        call = self.dependant.call
        assert call is not None
        if not iscoroutinefunction(call):
            self.dependant.call = _as_coroutine(call)
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            _threads.set(request.app.state.route_threads)
            return await handler(request)

        return answer


async def in_turn(
    tenant_id: str, call: Callable[Inputs, Value], *args: Inputs.args, **kwargs: Inputs.kwargs
) -> Value:
    """Return what `call` returns, run in one of the tenant's threads.

    Raises:
        ServiceUnavailableError: It did not begin or return in time, for instance because the disk hangs.
    """
    return await _threads.get().run(tenant_id, partial(call, *args, **kwargs))


async def in_turn_if_large(
    tenant_id: str, size: int, call: Callable[Inputs, Value], *args: Inputs.args, **kwargs: Inputs.kwargs
) -> Value:
    """As `in_turn`, for parsing so many bytes; few are parsed at once, faster than to switch threads."""
    if size < _LARGE_BYTES:
        return call(*args, **kwargs)
    return await in_turn(tenant_id, call, *args, **kwargs)


async def read_now(
    tenant_id: str, read: Callable[Inputs, Value], *args: Inputs.args, **kwargs: Inputs.kwargs
) -> Value:
    """As `in_turn`, for reads that nearly every request needs: at once if all of it is cached.

    Then it takes less time than switching threads. `read` may be begun twice.
    """
    try:
        with cached_only():
            return read(*args, **kwargs)
    except NotCachedError:
        return await in_turn(tenant_id, read, *args, **kwargs)


def _as_coroutine(call: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def run(**values: Any) -> Any:
        return await in_turn(values["tenant"].tenant_id, call, **values)

    return run


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
