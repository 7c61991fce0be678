"""EnvSession: the client's end of a session. Numbers the calls, and repeats the last one if it was lost."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    EnvironmentTimeoutError,
    InvalidRequestError,
    PayloadTooLargeError,
    RemoteAnswerError,
    ServiceUnavailableError,
    ServiceUnreachableError,
    TinkerGymError,
)
from tinkergym.network.backoff import Backoff
from tinkergym.schema.environment_url import EnvironmentUrl
from tinkergym.serving.connection import ConnectionLostError, EnvConnection
from tinkergym.serving.named_blobs import SEEN, contents
from tinkergym.serving.server_responses import (
    MOST_MESSAGE_BYTES,
    Description,
    ServerLimits,
    check_number,
    check_session,
    read_description,
    read_error,
    read_limits,
)
from tinkergym.serving.wire_protocol import MESSAGE_BYTES, VERSION, Frame, Message, decode, encode
from tinkergym.serving.wire_values import Blob

Value = TypeVar("Value")

_CONNECT_SECONDS = 10.0
_MARGIN_SECONDS = 10.0
"""Extra time for a response beyond the server's own limit for the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A server's address and token."""

    url: EnvironmentUrl
    token: str
    address: str = ""
    """The address to connect to instead of resolving the host's name."""
    reconnect_seconds: float = 10.0
    """How long to try to reconnect to a lost server."""


class EnvSession:
    """A connection to a server and, after `open`, a place on it."""

    def __init__(self, server: ServerAddress) -> None:
        self._server = server
        self._connection: EnvConnection | None = None
        self._session_id = ""
        self._index = 0
        self._limits = ServerLimits(step_timeout_seconds=60.0, max_message_bytes=MESSAGE_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether it has a place, as far as is known here."""
        return bool(self._session_id)

    def about(self) -> Description:
        """Ask what is served.

        Raises:
            ServiceUnreachableError: The server does not respond.
            AuthenticationError: The token is wrong.
            VersionMismatchError: The server uses another version.
            RemoteAnswerError: The response does not describe an environment.
        """
        answer = self._ask({"op": "about", "version": VERSION})
        with self._believing_nothing():
            description = read_description(answer)
            self._limits = read_limits(answer)
        return description

    def open(self, render_mode: str | None, busy_seconds: float) -> None:
        """Take a place.

        Args:
            render_mode: The environment's render mode.
            busy_seconds: How long to wait for a place when all are taken.

        Raises:
            EnvironmentBusyError: All places are taken.
        """
        session_id = secrets.token_hex(16)
        message = {
            "op": "open",
            "version": VERSION,
            "session": session_id,
            "render_mode": render_mode,
            "by_hash": True,
        }
        ends_at = time.monotonic() + busy_seconds
        while True:
            try:
                answer = self._ask(message)
            except EnvironmentBusyError as error:
                left = ends_at - time.monotonic()
                if left <= 0:
                    raise
                # Randomly shortened, so that many waiting clients do not all return at once.
                time.sleep(min(error.retry_after_seconds * random.uniform(0.5, 1.0), left))
            else:
                break
        with self._believing_nothing():
            check_session(answer, session_id)
            self._limits = read_limits(answer)
        self._session_id, self._index = session_id, 0

    def call(self, op: str, read: Callable[[Message], Value], **fields: Any) -> Value:
        """Make a call and return its response, as parsed by `read`.

        Raises:
            RemoteAnswerError: The response is invalid. The session is over.
            EnvironmentGoneError: The session, or the server, is gone.
            EnvironmentTimeoutError: The environment hangs.
            PayloadTooLargeError: The call is longer than the server accepts.
            TinkerGymError: The environment's error.
        """
        index = self._index
        try:
            frame = encode({"op": op, "i": index, **fields})
        except TypeError as error:
            raise InvalidRequestError(f"{op} cannot be sent: {error}") from None
        most = self._limits.max_message_bytes
        if len(frame) > most:
            raise PayloadTooLargeError(
                f"{op} is {len(frame)} bytes long, over the environment server's {most}",
                hint="send less, or start the server with a larger --max-message-bytes",
            )
        # The first call creates the environment, too.
        seconds = self._limits.step_timeout_seconds * (2 if index == 0 else 1) + _MARGIN_SECONDS
        try:
            answer = self._exchange(frame, seconds)
        except ServiceUnreachableError as error:
            self.forget()
            raise EnvironmentGoneError(
                f"the environment server is gone: {error.message}", hint=error.hint
            ) from None
        except BaseException:
            # Interrupted between request and response: the next response could belong to either call.
            self.abandon()
            raise
        with self._believing_nothing():
            check_number(answer, index)
            if "error" not in answer:
                value = read(answer)
                self._index = index + 1
                return value
        if "i" in answer:
            # An error with the call's number is an ordinary response: the environment raised.
            self._index = index + 1
        answered = _error_of(answer)
        if isinstance(answered, EnvironmentGoneError | EnvironmentTimeoutError):
            self.forget()
        if isinstance(answered, RemoteAnswerError):
            self.abandon()
        raise answered

    def close(self) -> None:
        """Free the place and disconnect. A server that is gone has freed both already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._session_id:
                with suppress(ConnectionLostError):
                    connection.exchange('{"op":"close"}', _CONNECT_SECONDS)
            connection.close()
        self._session_id = ""

    def abandon(self) -> None:
        """Disconnect without waiting. The server closes the environment after its present call."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.say('{"op":"close"}')
            connection.close()
        self._session_id = ""

    def forget(self) -> None:
        """Give up a place that is lost, or belongs to the process that forked this one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        self._session_id = ""

    # --- inside ---

    @contextmanager
    def _believing_nothing(self) -> Iterator[None]:
        """End the session if a response is invalid: the next one could belong to either call."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _exchange(self, frame: Frame, timeout_seconds: float) -> Message:
        """Send a frame and return its response; if the connection is lost, send it again over a new one."""
        patience = Backoff(
            patience_seconds=self._server.reconnect_seconds, first_seconds=0.05, most_seconds=1.0
        )
        waits = patience.waits()
        gives_up_at = 0.0
        while True:
            try:
                connection = self._connected()
                answer = _whole(connection, connection.exchange(frame, timeout_seconds), timeout_seconds)
                break
            except RemoteAnswerError:
                self._drop()
                raise
            except (ConnectionLostError, _AwayError) as error:
                self._drop()
                now = time.monotonic()
                gives_up_at = gives_up_at or now + self._server.reconnect_seconds
                # Also limited by time: a server that connects and never responds costs a timeout per try.
                if now >= gives_up_at or next(waits, None) is None:
                    raise ServiceUnreachableError(
                        f"no environment server responds at {self._server.url}: {error}",
                        hint="check that `tinkergym serve-env` is running there and that the address is "
                        "right",
                    ) from None
        return answer

    def _ask(self, message: Message) -> Message:
        answer = self._exchange(encode(message), _CONNECT_SECONDS)
        if "error" in answer:
            raise _error_of(answer)
        return answer

    def _connected(self) -> EnvConnection:
        if self._connection is None:
            try:
                connection = EnvConnection(
                    self._server.url,
                    token=self._server.token,
                    address=self._server.address,
                    timeout_seconds=_CONNECT_SECONDS,
                    # Ours may be lower than what the server sends; the server is told to respect it.
                    max_message_bytes=min(4 * self._limits.max_message_bytes, MOST_MESSAGE_BYTES),
                )
            except ServiceUnavailableError as error:
                raise _AwayError(error.message) from None
            self._connection = connection
            if self._session_id:
                resume = {
                    "op": "open",
                    "version": VERSION,
                    "session": self._session_id,
                    "resume": True,
                    "by_hash": True,
                }
                answer = _decoded(connection.exchange(encode(resume), _CONNECT_SECONDS))
                if "error" in answer:
                    raise _error_of(answer)
                check_session(answer, self._session_id)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()


class _AwayError(Exception):
    """The server reports that it cannot respond at the moment."""


def _whole(connection: EnvConnection, frame: Frame, timeout_seconds: float) -> Message:
    """Return the message in a frame; requests bytes that it names and this process lacks."""
    try:
        hashes, came = contents(frame)
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteAnswerError(f"a frame is not a message of this protocol: {str(error)[:200]}") from None
    SEEN.add(came)
    known: dict[str, Blob] = {**SEEN.find(hashes), **came}
    missing = [sha256 for sha256 in hashes if sha256 not in known]
    if missing:
        asked = encode({"op": "blobs", "hashes": missing})
        blobs = _decoded(connection.exchange(asked, timeout_seconds)).get("blobs")
        if not isinstance(blobs, list) or not all(isinstance(blob, bytes) for blob in blobs):
            raise RemoteAnswerError("the server does not have the bytes that its answer names")
        asked_for = {hashlib.sha256(blob).hexdigest(): blob for blob in blobs}
        SEEN.add(asked_for)
        known |= asked_for
    return _decoded(frame, known)


def _decoded(frame: Frame, known: Mapping[str, Blob] | None = None) -> Message:
    try:
        return decode(frame, known)
    except InvalidRequestError as error:
        raise RemoteAnswerError(error.message, hint=error.hint) from None


def _error_of(answer: Message) -> TinkerGymError:
    return read_error(answer["error"], answer.get("retry_after_seconds"))
