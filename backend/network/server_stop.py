"""How the service's HTTP servers stop: when told, and with a 503 for each request that they cannot finish."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.processes.exhaustion import end_if_exhausted
from tinkergym.errors import ServiceUnavailableError, TinkerGymError


class QuietServer(uvicorn.Server):
    """uvicorn, without waking ten times a second: it waits to be told to exit.

    Only the time in its responses' headers is renewed, once a second.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._serving: asyncio.AbstractEventLoop | None = None

    def tell_to_exit(self) -> None:
        """Let it exit at once; called from any thread, or from a signal's handler."""
        self.should_exit = True
        if self._serving is not None:
            with contextlib.suppress(RuntimeError):  # It has ended.
                self._serving.call_soon_threadsafe(self._told.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn: a signal arrived."""
        super().handle_exit(sig, frame)
        self.tell_to_exit()

    async def main_loop(self) -> None:
        """Run until told to exit."""
        self._serving = asyncio.get_running_loop()
        self._serving.set_exception_handler(_end_or_log)
        ticks = 0  # of 0.1 s, as uvicorn counts
        while not await self.on_tick(ticks):
            ticks += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1.0)


def _end_or_log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error outside of requests, such as while uvicorn reads one."""
    loop.default_exception_handler(context)
    if (error := context.get("exception")) is not None:
        end_if_exhausted(error)


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
