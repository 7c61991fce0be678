"""A limit on how long the head of a request may take; uvicorn itself waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

from uvicorn.protocols.http.h11_impl import H11Protocol


class PunctualHead(H11Protocol):
    """Hangs up on a connection that has begun, but not finished, the head of a request.

    uvicorn itself limits only the pause between two requests. A connection that became a WebSocket is left.
    """

    head_seconds: ClassVar[float] = 10.0

    @classmethod
    def within(cls, seconds: float) -> type[Self]:
        """Return the protocol with this limit; uvicorn takes a class and has no setting for it."""
        return type(cls.__name__, (cls,), {"head_seconds": seconds})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: from now on it has to say something."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came; see whether they end a head."""
        super().data_received(data)
        self._watch_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """The head is there; what follows is the business of the WebSocket's protocol."""
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def _between_requests(self) -> bool:
        return not self._upgraded and (self.cycle is None or self.cycle.response_complete)

    def _watch_head(self) -> None:
        if not self._between_requests:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._hang_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self._head_timer = None
        if self._between_requests and not self.transport.is_closing():
            self.transport.close()
