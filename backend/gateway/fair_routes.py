"""Routes that block run in threads shared fairly between tenants, with a deadline, instead of in any.

So does every use of the store by a route that does not: the disk may hang, and the event loop must not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from backend.gateway.fair_threads import FairThreads
from backend.store.read_cache import NotCachedError, cached_only

Inputs = ParamSpec("Inputs")
Value = TypeVar("Value")

_threads: ContextVar[FairThreads] = ContextVar("threads")


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
