"""A 503 for each request that a server cannot finish, because it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkergym.errors import ServiceUnavailableError, TinkerGymError


def error_reply(error: TinkerGymError, _path: str = "") -> Response:
    """Return an error in our format, with its own status."""
    return JSONResponse({"error": error.to_wire()}, status_code=error.http_status)


@dataclass(frozen=True, slots=True)
class AnswersAtStop:
    """Wraps an application, outside of everything else.

    At the end of its grace period uvicorn cancels open requests and answers a bare 500. Clients treat that as
    a failure; on a 503 they wait for the service to return.
    """

    app: ASGIApp
    answer: Callable[[ServiceUnavailableError, str], Response] = error_reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                raise
            error = ServiceUnavailableError(
                f"the service stopped before {scope['method']} {scope['path']} was answered",
                hint="try again when it is back",
            )
            await self.answer(error, scope["path"])(scope, receive, send)
