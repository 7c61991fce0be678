"""Limits on the header of a request, on open connections, and on how long a response may wait to be read.

uvicorn itself has none.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

from uvicorn.protocols.http.h11_impl import H11Protocol


class PunctualReader(asyncio.Protocol):
    """Disconnects a client that does not read its responses: a mixin for protocols of uvicorn."""

    reading_seconds: ClassVar[float] = 60.0
    """How long a response may wait for a client that does not read: the code that produces it waits, too."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _reading_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Too much data waits to be read; check later whether the client has read some."""
        super().pause_writing()
        if self._reading_timer is None:
            # Not `close`, which waits until everything is sent.
            self._reading_timer = self.loop.call_later(self.reading_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_reading_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_reading_timer()
        super().connection_lost(exc)

    def _stop_reading_timer(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None


class PunctualHead(PunctualReader, H11Protocol):
    """Disconnects a client that started, but did not finish, the header of a request, or does not read.

    uvicorn itself only limits the pause between two requests. A connection that became a WebSocket is not
    affected.
    """

    head_seconds: ClassVar[float] = 10.0
    most_connections: ClassVar[int | None] = None
    too_many: ClassVar[bytes] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n"
    """The response to further connections."""

    @classmethod
    def within(
        cls, seconds: float, most_connections: int | None = None, too_many: bytes | None = None
    ) -> type[Self]:
        """Return the protocol with these limits; uvicorn takes a class and has no setting for them."""
        limits = {"head_seconds": seconds, "most_connections": most_connections}
        return type(cls.__name__, (cls,), limits | ({"too_many": too_many} if too_many else {}))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._upgraded = False
        self._idle_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: from now on it must send something."""
        super().connection_made(transport)
        full = self.most_connections is not None and len(self.connections) > self.most_connections
        if full and not self._made_room():
            transport.write(self.too_many)
            transport.close()
            return
        self._watch_head()

    def _made_room(self) -> bool:
        """Close another connection without a request in progress; False if there is none.

        First those that never sent a request, then those between two requests, longest idle first.
        """
        idle = [other for other in self.connections if isinstance(other, PunctualHead) and other._is_idle]
        longest = min((other for other in idle if other is not self), key=_spared, default=None)
        if longest is not None:
            longest.transport.abort()
        return longest is not None

    def data_received(self, data: bytes) -> None:
        """Some bytes arrived; check whether they complete a header."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """A response is complete: until the next request, the connection is idle."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """The header is complete; the WebSocket protocol handles the rest."""
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        """Whether it has no request in progress, and no response left to send."""
        left = self.transport.is_closing() or self.transport.get_write_buffer_size() > 0
        return self._between_requests and not left

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


def _spared(connection: PunctualHead) -> tuple[bool, float]:
    return connection.cycle is not None, connection._idle_since
