"""A limit on how long the head of a request may take; uvicorn itself waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class PunctualHead(H11Protocol):
    """Hangs up on a connection that has not sent a request in time; one that became a WebSocket is left."""

    head_seconds: ClassVar[float] = 10.0

    @classmethod
    def within(cls, seconds: float) -> type[PunctualHead]:
        """Return the protocol with this limit; uvicorn takes a class and has no setting for it."""
        return type("PunctualHead", (cls,), {"head_seconds": seconds})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: from now on it has to say something."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._hang_up)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """The head is there; what follows is the business of the WebSocket's protocol."""
        self._stop()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hang_up(self) -> None:
        # The only ordinary request asks for the server's health, which takes no time.
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()
