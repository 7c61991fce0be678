"""uvicorn on a socket that is already open, with a limit on how long the head of a request may take.

The socket belongs to the supervisor, so that clients wait, instead of failing, while a killed
gateway comes back.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

_SHUTDOWN_SECONDS = 1
_KEEP_ALIVE_SECONDS = 60


def serve_on(listener: socket.socket, app: FastAPI, head_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT."""
    # Connections inherit it. asyncio sets it too, but only where it knows that the socket is TCP; without it,
    # the second packet of every answer waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        http=PunctualProtocol.within(head_seconds),
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        # Event streams never end by themselves; clients take them up again elsewhere.
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])


class PunctualProtocol(H11Protocol):
    """Hangs up on a connection that has begun, but not finished, the head of a request.

    uvicorn itself limits only the pause between two requests.
    """

    head_seconds: ClassVar[float] = 30.0

    @classmethod
    def within(cls, head_seconds: float) -> type[PunctualProtocol]:
        """Return the protocol with this limit; uvicorn takes a class and has no setting for it."""
        return type("PunctualProtocol", (cls,), {"head_seconds": head_seconds})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: from now on it has to say something."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came; see whether they end a head."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        between_requests = self.cycle is None or self.cycle.response_complete
        if not between_requests:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._hang_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self._head_timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()
