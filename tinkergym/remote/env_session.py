"""EnvSession: the client's end of a session. Numbers the calls, and repeats the last one if it was lost."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    EnvironmentTimeoutError,
    InvalidRequestError,
    PayloadTooLargeError,
    ServiceUnavailableError,
    ServiceUnreachableError,
    TinkerGymError,
    from_wire,
)
from tinkergym.remote.backoff import Backoff
from tinkergym.remote.env_connection import ConnectionLostError, EnvConnection
from tinkergym.remote.environment_url import EnvironmentUrl
from tinkergym.serving.protocol import MESSAGE_BYTES, VERSION, Frame, Message, decode, encode

_CONNECT_SECONDS = 10.0
_MARGIN_SECONDS = 10.0
"""What an answer may take beyond the server's own limit for the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A server and how to come in."""

    url: EnvironmentUrl
    token: str
    address: str = ""
    """What to connect to instead of looking the host's name up."""
    reconnect_seconds: float = 10.0
    """How long a lost server is looked for."""


class EnvSession:
    """A connection to a server and, once `open` was called, a place on it."""

    def __init__(self, server: ServerAddress) -> None:
        self._server = server
        self._connection: EnvConnection | None = None
        self._session_id = ""
        self._index = 0
        self._step_seconds = 60.0
        self._most_bytes = MESSAGE_BYTES

    @property
    def is_open(self) -> bool:
        """Whether there is a place, as far as is known here."""
        return bool(self._session_id)

    def about(self) -> Message:
        """Ask what is served.

        Raises:
            ServiceUnreachableError: Nobody answers.
            AuthenticationError: The token is wrong.
            ProtocolVersionError: The server speaks another version.
        """
        try:
            answer = self._ask({"op": "about", "version": VERSION})
            self._learn_limits(answer)
            return cast("Message", answer["environment"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"{self._server.url} does not answer as an environment server does: {error!r}", field="url"
            ) from error

    def open(self, render_mode: str | None, busy_seconds: float) -> None:
        """Take a place.

        Args:
            render_mode: For the environment's constructor.
            busy_seconds: How long to wait for a place when all are taken.

        Raises:
            EnvironmentBusyError: All places are taken.
        """
        session_id = secrets.token_hex(16)
        message = {"op": "open", "version": VERSION, "session": session_id, "render_mode": render_mode}
        ends_at = time.monotonic() + busy_seconds
        while True:
            try:
                self._learn_limits(self._ask(message))
            except EnvironmentBusyError as error:
                left = ends_at - time.monotonic()
                if left <= 0:
                    raise
                # Shortened at random, so that many who wait do not all come back together.
                time.sleep(min(error.retry_after_seconds * random.uniform(0.5, 1.0), left))
            else:
                break
        self._session_id, self._index = session_id, 0

    def call(self, op: str, **fields: Any) -> Message:
        """Make a call and return its answer.

        Raises:
            EnvironmentGoneError: The session, or the server, is there no longer.
            EnvironmentTimeoutError: The environment hangs.
            PayloadTooLargeError: The call is longer than the server takes.
            TinkerGymError: What the environment raised.
        """
        index = self._index
        try:
            frame = encode({"op": op, "i": index, **fields})
        except TypeError as error:
            raise InvalidRequestError(f"{op} cannot be sent: {error}") from None
        if len(frame) > self._most_bytes:
            raise PayloadTooLargeError(
                f"{op} is {len(frame)} bytes long, over the environment server's {self._most_bytes}",
                hint="send less, or start the server with a larger --max-message-bytes",
            )
        seconds = self._step_seconds * (2 if index == 0 else 1) + _MARGIN_SECONDS
        try:
            answer = self._exchange(frame, seconds)
        except ServiceUnreachableError as error:
            self.forget()
            raise EnvironmentGoneError(
                f"the environment server is gone: {error.message}", hint=error.hint
            ) from None
        except BaseException:
            # Interrupted between question and answer: whose answer comes next could not be told any more.
            self.abandon()
            raise
        if answer.get("i") == index:
            # An error with the call's number is an answer like any other: the environment raised.
            self._index = index + 1
        if "error" in answer:
            answered = _error_of(answer)
            if isinstance(answered, EnvironmentGoneError | EnvironmentTimeoutError):
                self.forget()
            raise answered
        return answer

    def close(self) -> None:
        """Give the place back and hang up; a server that is gone has taken both already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._session_id:
                with suppress(ConnectionLostError):
                    connection.exchange('{"op":"close"}', _CONNECT_SECONDS)
            connection.close()
        self._session_id = ""

    def abandon(self) -> None:
        """Hang up without waiting for anything; the server closes the environment after its present call."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.say('{"op":"close"}')
            connection.close()
        self._session_id = ""

    def forget(self) -> None:
        """Let go of a place that is lost, or belongs to the process which forked this one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        self._session_id = ""

    # --- inside ---

    def _exchange(self, frame: Frame, timeout_seconds: float) -> Message:
        """Send a frame and return its answer; over a new connection, again, when the old one is lost."""
        patience = Backoff(
            patience_seconds=self._server.reconnect_seconds, first_seconds=0.05, most_seconds=1.0
        )
        waits = patience.waits()
        while True:
            try:
                connection = self._connected()
                answer = decode(connection.exchange(frame, timeout_seconds))
                break
            except (ConnectionLostError, _AwayError) as error:
                self._drop()
                if next(waits, None) is None:
                    raise ServiceUnreachableError(
                        f"no environment server answers at {self._server.url}: {error}",
                        hint="is `tinkergym serve-env` running there, and is the address right?",
                    ) from None
        return answer

    def _ask(self, message: Message) -> Message:
        answer = self._exchange(encode(message), _CONNECT_SECONDS)
        if "error" in answer:
            raise _error_of(answer)
        return answer

    def _learn_limits(self, answer: Message) -> None:
        self._step_seconds = float(answer["step_timeout_seconds"])
        self._most_bytes = int(answer["max_message_bytes"])

    def _connected(self) -> EnvConnection:
        if self._connection is None:
            try:
                connection = EnvConnection(
                    self._server.url,
                    token=self._server.token,
                    address=self._server.address,
                    timeout_seconds=_CONNECT_SECONDS,
                    # Ours may be set lower than what the server sends; it is asked to keep its own limit.
                    max_message_bytes=4 * self._most_bytes,
                )
            except ServiceUnavailableError as error:
                raise _AwayError(error.message) from None
            self._connection = connection
            if self._session_id:
                resume = {"op": "open", "version": VERSION, "session": self._session_id, "resume": True}
                answer = decode(connection.exchange(encode(resume), _CONNECT_SECONDS))
                if "error" in answer:
                    raise _error_of(answer)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()


class _AwayError(Exception):
    """The server says that it cannot answer at the moment."""


def _error_of(answer: Message) -> TinkerGymError:
    error = from_wire(answer["error"])
    if isinstance(error, EnvironmentBusyError):
        error.retry_after_seconds = float(answer.get("retry_after_seconds", 1.0))
    return error
