"""Limits a request's body in size and time, and the number of requests per key.

Plain ASGI, around everything else. A body is checked while it arrives: one that is too large or too slow, or
for which there is no room among the others, is refused in the middle and never held in memory.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from math import inf

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import RequestTimeoutError
from backend.fairness.fair_places import FairPlaces, Hold
from backend.gateway.dependencies import key_in
from backend.gateway.error_responses import error_response
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import (
    PayloadTooLargeError,
    ServiceUnavailableError,
    TinkerGymError,
    TooManyRequestsError,
)

_SLOWEST_BYTES_PER_SECOND = 32 * 1024
"""A large body has `request_seconds` plus the time it takes at this speed."""

_SMALL_BYTES = 64 * 1024
"""Bytes of each body that are not counted: small requests pass while large ones are refused."""

_LINGER_SECONDS = 10.0
_LINGER_PAUSE_SECONDS = 0.5
_LINGER_BYTES = 2**30
"""How long, with what pauses and how much a refused sender may continue until it reads its response."""


class RequestLimits:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, limits: GatewayLimits) -> None:
        self._app = app
        self._limits = limits
        # A single key cannot keep out all others.
        self._bytes = FairPlaces(
            limits.bodies_bytes, most_of_one=max(limits.body_bytes, limits.bodies_bytes // 2)
        )
        self._open = FairPlaces(inf, most_of_one=max(1, limits.connections // 2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = int(headers.get("content-length", "0"))
        empty = announced == 0 and "transfer-encoding" not in headers
        # As routes read it: different spellings of a header are the same key.
        key = key_in(headers)
        share = _Share(self._bytes, key)
        body = _Body(receive, send, self._limits, share, complete=empty)
        app = self._app
        if announced > self._limits.body_bytes:
            app = error_response(body.too_large(), scope["path"])
        with ExitStack() as stack:
            stack.callback(share.give_back)
            # Including event streams. Requests without a key never wait, and are not counted.
            if key and not stack.enter_context(Hold(self._open, key)).take():
                app = error_response(self._too_many(), scope["path"])
            await app(scope, body.receive, body.send)

    def _too_many(self) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"{self._open.most_of_one} of your requests are open, including event streams, which is the "
            "limit for one key",
            hint="close some; the operator can raise limits.connections, of which one key may have half",
        )


class _Share:
    """The bytes of one request's body; a few of each are not counted, so that small requests pass."""

    def __init__(self, places: FairPlaces, key: str) -> None:
        self._hold = Hold(places, key)

    def grow_to(self, size: int) -> None:
        """Count the bytes received so far.

        Raises:
            ServiceUnavailableError: There is no room for them now.
        """
        more = size - _SMALL_BYTES - self._hold.count
        if more > 0 and not self._hold.take(more):
            raise ServiceUnavailableError(
                "the gateway has no room for this request's body next to those that it is reading",
                hint="send it again in a second, and fewer large ones at once",
            )

    def give_back(self) -> None:
        """Stop counting them."""
        self._hold.give(self._hold.count)


class _Body:
    """Receives and sends the messages of one request."""

    def __init__(
        self, receive: Receive, send: Send, limits: GatewayLimits, share: _Share, *, complete: bool
    ) -> None:
        self._receive = receive
        self._send = send
        self._limits = limits
        self._share = share
        self._got = 0
        self._complete = complete
        self._began: float | None = None

    def too_large(self) -> TinkerGymError:
        return PayloadTooLargeError(
            f"the request's body is over {self._limits.body_bytes} bytes",
            hint="send less at once, or ask the operator to raise limits.body_bytes",
        )

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()  # Possibly a long wait for the client to disconnect.
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began = loop.time()
        allowed = self._limits.request_seconds + self._got / _SLOWEST_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(self._began + allowed):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeoutError(
                f"the request's body did not arrive within {allowed:.0f} s ({self._got} bytes came)",
                hint="send it again",
            ) from None
        self._note(message)
        if self._got > self._limits.body_bytes:
            raise self.too_large()
        self._share.grow_to(self._got)
        return message

    async def send(self, message: Message) -> None:
        # By then a route has read its body and released it. It must not be held until the response ends: in
        # lockstep a sample is answered only when the bodies of others have arrived.
        self._share.give_back()
        if self._complete:
            await self._send(message)
        elif message["type"] == "http.response.start":
            # The rest of the body must not be taken for the next request.
            headers = [*message.get("headers", []), (b"connection", b"close")]
            await self._send({**message, "headers": headers})
        elif message.get("more_body"):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._drain()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        """Read and discard the rest: closing now would take the response from a client that still sends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._complete and self._got < _LINGER_BYTES:
                    self._note(await asyncio.wait_for(self._receive(), _LINGER_PAUSE_SECONDS))

    def _note(self, message: Message) -> None:
        if message["type"] == "http.request":
            self._got += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        else:
            self._complete = True
