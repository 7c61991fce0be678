"""Routes that block run in threads shared fairly between tenants, with a deadline, instead of in any."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from backend.gateway.fair_threads import FairThreads

_threads: ContextVar[FairThreads] = ContextVar("threads")


class FairRoute(APIRoute):
    """The route class of all routers. It changes plain functions only; their `tenant` says whose they are."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        call = self.dependant.call
        assert call is not None
        if not iscoroutinefunction(call):
            self.dependant.call = _in_turn(call)
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            _threads.set(request.app.state.route_threads)
            return await handler(request)

        return answer


def _in_turn(call: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def run(**values: Any) -> Any:
        return await _threads.get().run(values["tenant"].tenant_id, partial(call, **values))

    return run
