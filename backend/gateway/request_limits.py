"""Limits a request's body in size and time, and the number of requests per key.

Plain ASGI, around everything else. A body is checked while it arrives: one that is too large or too slow, or
for which there is no room among the others, is refused in the middle and never held in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.config import GatewayLimits
from backend.errors import RequestTimeoutError
from backend.gateway.answers import error_response
from backend.gateway.dependencies import key_in
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
        self._budget = _Budget(limits)
        self._open = _OpenRequests(limits)

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
        share = _Share(self._budget, key)
        body = _Body(receive, send, self._limits, share, complete=empty)
        app = error_response(body.too_large()) if announced > self._limits.body_bytes else self._app
        with ExitStack() as stack:
            stack.callback(share.give_back)
            try:
                stack.enter_context(self._open.entered(key))
            except TooManyRequestsError as error:
                app = error_response(error)
            await app(scope, body.receive, body.send)


class _OpenRequests:
    """Counts each key's unfinished requests, including event streams."""

    def __init__(self, limits: GatewayLimits) -> None:
        # A single key cannot keep out all others.
        self._most = limits.connections // 2
        self._by_key: Counter[str] = Counter()

    @contextmanager
    def entered(self, key: str) -> Iterator[None]:
        """Count a request until it is answered. Requests without a key never wait, and are not counted.

        Raises:
            TooManyRequestsError: The key has too many open requests.
        """
        if not key:
            yield
            return
        if self._by_key[key] >= self._most:
            raise TooManyRequestsError(
                f"{self._most} of your requests are open, including event streams, which is the limit for "
                f"one key",
                hint="close some; the operator can raise limits.connections, of which one key may have half",
            )
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]


class _Budget:
    """Bytes of all received bodies of unanswered requests, in all and per key."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._most = limits.bodies_bytes
        # A single key cannot keep out all others.
        self._most_per_key = max(limits.body_bytes, limits.bodies_bytes // 2)
        self._taken = 0
        self._taken_by: defaultdict[str, int] = defaultdict(int)

    def take(self, key: str, count: int) -> None:
        """Count more bytes of a key.

        Raises:
            ServiceUnavailableError: There is no room for them now.
        """
        if self._taken + count > self._most or self._taken_by[key] + count > self._most_per_key:
            raise ServiceUnavailableError(
                "the gateway has no room for this request's body next to those that it is reading",
                hint="send it again in a second, and fewer large ones at once",
            )
        self._taken += count
        self._taken_by[key] += count

    def give_back(self, key: str, count: int) -> None:
        """Stop counting them."""
        self._taken -= count
        self._taken_by[key] -= count
        if not self._taken_by[key]:
            del self._taken_by[key]


class _Share:
    """One request's share of the budget."""

    def __init__(self, budget: _Budget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._taken = 0

    def grow_to(self, size: int) -> None:
        more = size - _SMALL_BYTES - self._taken
        if more > 0:
            self._budget.take(self._key, more)
            self._taken += more

    def give_back(self) -> None:
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(self._key, taken)


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
