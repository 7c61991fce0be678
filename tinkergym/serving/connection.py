"""One WebSocket connection to an environment server: send a frame, wait for a frame.

`websockets` implements the protocol, and a plain socket the input and output. Its own synchronous client has
a thread per connection, which costs a thread switch per message and does not survive a fork.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tinkergym.basics.extras import import_extra
from tinkergym.errors import (
    InvalidRequestError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.environment_url import EnvironmentUrl
from tinkergym.serving.server_responses import read_error
from tinkergym.serving.wire_protocol import PATH, Frame

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.http11 import Response

_READ_BYTES = 65536


class ConnectionLostError(Exception):
    """The connection ended before the response arrived; the text says how."""


class EnvConnection:
    """An open connection. Belongs to one thread at a time."""

    def __init__(
        self, url: EnvironmentUrl, *, token: str, address: str, timeout_seconds: float, max_message_bytes: int
    ) -> None:
        """Connect.

        Args:
            url: The server's URL.
            token: The token; empty sends none.
            address: The address to connect to; empty resolves the host's name.
            timeout_seconds: Time limit for connecting.
            max_message_bytes: Longest accepted message.

        Raises:
            ConnectionLostError: The server does not respond.
            AuthenticationError: The token is wrong.
            InvalidRequestError: The server is not an environment server.
            MissingExtraError: `websockets` is not installed.
        """
        parse_uri = _websockets("uri").parse_uri
        ends_at = time.monotonic() + timeout_seconds
        self._events: list[Any] = []
        try:
            self._socket = socket.create_connection((address or url.host, url.port), timeout=timeout_seconds)
        except OSError as error:
            raise ConnectionLostError(f"{url.origin}: {error.strerror or error}") from None
        try:
            # Each small frame waits for its response, so none may be held back until there is more to send.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme == "wss":
                self._socket = ssl.create_default_context().wrap_socket(
                    self._socket, server_hostname=url.host
                )
            self._protocol: ClientProtocol = _websockets("client").ClientProtocol(
                parse_uri(str(url) + PATH), max_size=max_message_bytes
            )
            request = self._protocol.connect()
            if token:
                request.headers["Authorization"] = f"Bearer {token}"
            self._protocol.send_request(request)
            self._flush()
            response = self._next_event(ends_at)
        except OSError as error:
            self.drop()
            raise ConnectionLostError(f"{url.origin}: {error}") from None
        except BaseException:
            self.drop()
            raise
        if self._protocol.handshake_exc is not None:
            self.drop()
            raise _refused(url, response)

    def exchange(self, frame: Frame, timeout_seconds: float) -> Frame:
        """Send a frame and return the response.

        Raises:
            ConnectionLostError: The connection ended, or no response arrived in time.
        """
        opcode, invalid_state = _websockets("frames").Opcode, _websockets("exceptions").InvalidState
        ends_at = time.monotonic() + timeout_seconds
        self._socket.settimeout(timeout_seconds)
        try:
            if isinstance(frame, str):
                self._protocol.send_text(frame.encode())
            else:
                self._protocol.send_binary(frame)
            self._flush()
            parts: list[bytes] = []
            kind = opcode.TEXT
            while True:
                event = self._next_event(ends_at)
                if event.opcode in (opcode.TEXT, opcode.BINARY, opcode.CONT):
                    kind = kind if event.opcode is opcode.CONT else event.opcode
                    parts.append(event.data)
                    if event.fin:
                        data = parts[0] if len(parts) == 1 else b"".join(parts)
                        return bytes(data).decode() if kind is opcode.TEXT else bytes(data)
        except (OSError, invalid_state, UnicodeDecodeError) as error:
            raise ConnectionLostError(str(error) or type(error).__name__) from None

    def say(self, frame: str) -> None:
        """Send a frame without waiting for a response; errors are ignored."""
        with suppress(Exception):
            self._socket.settimeout(1.0)
            self._protocol.send_text(frame.encode())
            self._flush()

    def close(self) -> None:
        """Say goodbye and close."""
        with suppress(Exception):
            self._socket.settimeout(1.0)
            self._protocol.send_close(1000)
            self._flush()
        self.drop()

    def drop(self) -> None:
        """Close without a word a connection that is lost, or belongs to the process that forked this one."""
        with suppress(OSError):
            self._socket.close()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)

    def _next_event(self, ends_at: float) -> Any:
        while not self._events:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise ConnectionLostError("no response arrived in time")
            self._socket.settimeout(left)
            data = self._socket.recv(_READ_BYTES)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._flush()  # Pongs, and the response to a close.
            self._events += self._protocol.events_received()
            if not self._events and (not data or self._protocol.close_expected()):
                raise ConnectionLostError(self._how_it_ended())
        return self._events.pop(0)

    def _how_it_ended(self) -> str:
        closed = self._protocol.close_rcvd or self._protocol.close_sent
        if closed is not None:
            return f"the connection was closed with code {closed.code} {closed.reason}".rstrip()
        return "the server disconnected"


def _refused(url: EnvironmentUrl, response: Response) -> TinkerGymError:
    """Return the error for a response that is not a WebSocket handshake."""
    try:
        wire = json.loads(response.body or b"")["error"]
    except (ValueError, TypeError, KeyError):
        if response.status_code in (502, 503, 504):
            return ServiceUnavailableError(
                f"{url}: HTTP {response.status_code}", hint="try again in a moment"
            )
        return InvalidRequestError(
            f"{url} is not an environment server: it responded with HTTP {response.status_code}",
            hint="start one with `tinkergym serve-env ID`, and use the address that it prints",
            field="url",
        )
    return read_error(wire)


def _websockets(module: str) -> Any:
    needed = "remote environments need the package websockets"
    return import_extra(f"websockets.{module}", needed, extra="serving")
