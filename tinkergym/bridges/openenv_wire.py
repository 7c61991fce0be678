"""OpenEnv's wire protocol: a WebSocket with `reset` and `step` per session, and `/schema` over HTTP.

Nothing is imported from OpenEnv, which pins different versions of packages, and whose servers usually run
elsewhere.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tinkergym.basics.extras import import_extra
from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    EnvironmentTimeoutError,
    InvalidRequestError,
    InvalidRewardError,
    RemoteAnswerError,
    RemoteEnvironmentError,
    ServiceUnreachableError,
    TinkerGymError,
)
from tinkergym.user_code.quoting import quoted
from tinkergym.user_code.returned_values import finite_json_number

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_MOST_SCHEMA_BYTES = 2**20
_MOST_TEXT = 2_000
"""Character limit for a server's error in messages."""
_MOST_CODE = 100


@dataclass(frozen=True, slots=True)
class OpenEnvAddress:
    """A server's address."""

    host: str
    port: int | None
    path: str
    secure: bool

    @classmethod
    def parse(cls, url: str) -> OpenEnvAddress:
        """Parse an address such as `http://127.0.0.1:8000`; `ws://` is accepted as well.

        Raises:
            InvalidRequestError: It is not a valid address.
        """
        address = _address(url)
        if address is None:
            raise InvalidRequestError(
                f"{quoted(url)!r} is not the address of an OpenEnv server",
                hint="use http://HOST:PORT or https://HOST, and percent-encode special characters",
                field="url",
            )
        return address

    def __str__(self) -> str:
        return f"http{'s' * self.secure}://{self._place}{self.path}"

    @property
    def websocket(self) -> str:
        """The URL of a session."""
        return f"ws{'s' * self.secure}://{self._place}{self.path}/ws"

    @property
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def _address(url: object) -> OpenEnvAddress | None:
    """Return a parsed address, or None if no connection could be made with it."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        return None
    if parts.scheme not in _SCHEMES or not host or parts.username or not parts.path.isascii():
        return None
    return OpenEnvAddress(host, port, parts.path.rstrip("/"), _SCHEMES[parts.scheme] == "wss")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvAnswer:
    """A server's response to `reset` and `step`."""

    observation: dict[str, Any]
    reward: float
    """0 if the environment gave none."""
    done: bool


class ActionRefusedError(Exception):
    """An action does not match the server's schema; the message tells the policy why."""


def read_schema(address: OpenEnvAddress, *, timeout_seconds: float) -> dict[str, Any]:
    """Return the JSON schemas of a server's environment, by `action`, `observation` and `state`.

    Raises:
        ServiceUnreachableError: No server responds.
        InvalidRequestError: The server is not an OpenEnv server.
    """
    ends_at = time.monotonic() + timeout_seconds
    try:
        with _http(address, timeout_seconds) as connection:
            connection.request("GET", f"{address.path}/schema", headers={"Accept": "application/json"})
            # A response with `Connection: close` keeps the socket open after its connection is closed.
            with connection.getresponse() as response:
                body = response.read(_MOST_SCHEMA_BYTES)
        if time.monotonic() >= ends_at:
            raise TimeoutError
    except (OSError, http.client.HTTPException) as error:
        late = time.monotonic() >= ends_at
        why = f"it did not send its schema within {timeout_seconds:g} s" if late else str(error)
        raise _unreachable(address, why or type(error).__name__) from None
    with suppress(ValueError, RecursionError):
        schema = json.loads(body)
        described = isinstance(schema, dict) and isinstance(schema.get("action"), dict)
        if described and response.status == http.client.OK:
            return dict(schema)
    raise InvalidRequestError(
        f"{address} is not an OpenEnv server: GET /schema returned HTTP {response.status}",
        hint="use the address of the environment's server",
        field="url",
    )


def _connect(address: OpenEnvAddress, seconds: float) -> socket.socket:
    """Connect; nothing that is sent later may wait longer than this for the server to read it."""
    port = address.port or (443 if address.secure else 80)
    connected = socket.create_connection((address.host, port), timeout=seconds)
    limit = struct.pack("ll", math.ceil(seconds), 0)  # A struct timeval.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return connected


@contextmanager
def _http(address: OpenEnvAddress, seconds: float) -> Iterator[http.client.HTTPConnection]:
    """A connection that ends after `seconds`; its own timeout is one of each part of a response."""
    with ExitStack() as stack:
        connected = _connect(address, seconds)
        stack.callback(connected.close)
        # TLS takes over the socket, so this needs a handle of its own.
        handle = stack.enter_context(connected.dup())
        ends = threading.Timer(seconds, _shut, [handle])
        ends.start()
        stack.callback(ends.join)
        stack.callback(ends.cancel)
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        connection = kind(address.host, address.port)
        stack.callback(connection.close)
        if address.secure:
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=address.host)
        connection.sock = connected
        yield connection


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _unreachable(address: OpenEnvAddress, why: str) -> ServiceUnreachableError:
    return ServiceUnreachableError(
        f"no OpenEnv server responds at {address}: {why}",
        hint="start the environment's server, or correct url",
        field="url",
    )


class OpenEnvSession:
    """An environment on a server, while the connection lasts. Belongs to one thread at a time."""

    def __init__(self, address: OpenEnvAddress, *, timeout_seconds: float, max_message_bytes: int) -> None:
        """Connect; the first request shows whether there is a free place.

        Raises:
            ServiceUnreachableError: No server responds, or it does not support WebSockets.
            MissingExtraError: `websockets` is not installed.
        """
        errors = _websockets("exceptions")
        self._address = address
        self._open = ExitStack()
        try:
            self._socket = self._open.enter_context(
                _websockets("sync.client").connect(
                    address.websocket,
                    # With a socket of ours no redirect is followed, which could lead to any other host.
                    sock=_connect(address, timeout_seconds),
                    open_timeout=timeout_seconds,
                    close_timeout=1.0,
                    max_size=max_message_bytes,
                    proxy=None,
                )
            )
        except (OSError, ValueError, errors.WebSocketException) as error:
            raise _unreachable(address, str(error) or type(error).__name__) from None

    def ask(self, kind: str, data: dict[str, Any], *, timeout_seconds: float) -> OpenEnvAnswer:
        """Send `reset` or `step` and return the response.

        Raises:
            ActionRefusedError: The action does not match the server's schema.
            EnvironmentBusyError: The server has no free place.
            EnvironmentGoneError: The connection ended.
            EnvironmentTimeoutError: There was no response in time. The session is over.
            RemoteEnvironmentError: The environment raised an error.
            RemoteAnswerError: The response is invalid. The session is over.
            InvalidRewardError: The reward is not a finite number.
        """
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            frame = self._socket.recv(timeout=timeout_seconds)
        except TimeoutError:
            self.close()
            raise EnvironmentTimeoutError(
                f"{self._address} did not respond to {kind} within {timeout_seconds:g} s",
                hint="raise step_timeout_seconds if the environment is slow",
            ) from None
        except (OSError, _websockets("exceptions").ConnectionClosed) as error:
            # A server without a free place reports it and disconnects, perhaps before receiving the request.
            last = None
            with suppress(Exception):
                last = self._socket.recv(timeout=0)
            if last is not None:
                return self._read(last, kind)
            self.close()
            raise EnvironmentGoneError(
                f"the session at {self._address} ended: {error or type(error).__name__}",
                hint="reset starts a new one; the server's output shows the reason",
            ) from None
        return self._read(frame, kind)

    def close(self) -> None:
        """End the session."""
        with suppress(Exception):
            self._socket.send('{"type": "close"}')
        with suppress(Exception):
            self._open.close()

    def _read(self, frame: str | bytes, kind: str) -> OpenEnvAnswer:
        try:
            message = json.loads(frame)
        except (ValueError, RecursionError):
            message = None
        data = message.get("data") if isinstance(message, dict) else None
        if isinstance(message, dict) and isinstance(data, dict):
            if message.get("type") == "error":
                raise self._error(data, kind)
            if message.get("type") == "observation" and isinstance(data.get("observation"), dict):
                return OpenEnvAnswer(
                    observation=data["observation"],
                    reward=_reward(data.get("reward")),
                    done=data.get("done") is True,
                )
        self.close()
        raise RemoteAnswerError(f"{self._address} responded to {kind} with {quoted(message)}")

    def _error(self, data: dict[str, Any], kind: str) -> Exception:
        code, text = str(data.get("code", ""))[:_MOST_CODE], str(data.get("message", ""))[:_MOST_TEXT]
        if code == "VALIDATION_ERROR" and kind == "step":
            return ActionRefusedError(_reasons(data.get("errors")) or text)
        error: TinkerGymError
        if code == "CAPACITY_REACHED":
            self.close()
            error = EnvironmentBusyError(
                f"all places at {self._address} are taken",
                hint="start its server with a larger max_concurrent_envs, or raise busy_seconds",
            )
        elif code in ("INVALID_JSON", "UNKNOWN_TYPE"):
            self.close()
            error = RemoteAnswerError(f"{self._address} does not understand {kind}: {text}")
        else:
            error = RemoteEnvironmentError(
                f"the environment at {self._address} failed in {kind} ({code}): {text}"
            )
        return error


def _websockets(module: str) -> Any:
    needed = "OpenEnv environments need the package websockets"
    return import_extra(f"websockets.{module}", needed, extra="serving")


def _reward(value: object) -> float:
    if value is None:
        return 0.0
    reward = finite_json_number(value)
    if reward is None:
        raise InvalidRewardError(f"the environment's reward is {quoted(value)}, not a finite number")
    return reward


def _reasons(errors: object) -> str:
    """Return validation errors as lines `field: reason`."""
    if not isinstance(errors, list):
        return ""
    lines = []
    for one in errors[:10]:
        if isinstance(one, dict):
            where = ".".join(map(str, one["loc"])) if isinstance(one.get("loc"), list) else ""
            lines.append(f"{where}: {one.get('msg', '')}".removeprefix(": "))
    return "\n".join(lines)[:_MOST_TEXT]
