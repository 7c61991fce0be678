"""The bridge to OpenEnv, against servers that follow no protocol: nothing hangs, grows or goes elsewhere."""

import base64
import contextlib
import hashlib
import itertools
import json
import socket
import threading

import pytest

from tests.tinkergym.bridges.openenv_counterpart import Counterpart
from tinkergym.bridges.openenv_wire import OpenEnvAddress, OpenEnvSession, read_schema
from tinkergym.errors import (
    EnvironmentGoneError,
    EnvironmentTimeoutError,
    InvalidRewardError,
    RemoteAnswerError,
    RemoteEnvironmentError,
    ServiceUnreachableError,
)

_SECONDS = 0.2
"""For what never comes."""


@contextlib.contextmanager
def hostile(answer):
    """Serve one connection with `answer(socket, request)`, and yield the address."""
    done = threading.Event()

    def serve():
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            answer(connection, connection.recv(2**16))
            done.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield OpenEnvAddress("127.0.0.1", listener.getsockname()[1], "", secure=False)
        done.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def endlessly(first, part):
    """Send a beginning, and then the same part for as long as the client listens."""

    def answer(connection, _request):
        connection.sendall(first)
        pause = threading.Event()
        for _ in itertools.count():
            connection.sendall(part)
            pause.wait(_SECONDS / 10)

    return answer


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["a header", "headers", "informational responses", "a body", "a chunk's size", "trailers"],
)
def test_stops_reading_a_schema_that_never_ends(first, part):
    with hostile(endlessly(first, part)) as address, pytest.raises(ServiceUnreachableError):
        read_schema(address, timeout_seconds=_SECONDS)


def test_follows_no_redirect_to_another_server():
    with Counterpart() as other:

        def redirect(connection, _request):
            where = other.url.replace("http", "ws")
            connection.sendall(
                f"HTTP/1.1 307 Go\r\nLocation: {where}/ws\r\nContent-Length: 0\r\n\r\n".encode()
            )

        with hostile(redirect) as address, pytest.raises(ServiceUnreachableError):
            session(address)
        assert other.most_sessions == 0


def test_leaves_a_server_that_reads_nothing():
    def ping(connection, request):
        accept(connection, request)
        for _ in itertools.count():
            connection.sendall(b"\x89\x7d" + bytes(125))

    with hostile(ping) as address:
        playing = session(address)
        with pytest.raises(EnvironmentTimeoutError):
            playing.ask("reset", {}, timeout_seconds=_SECONDS)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b"", RemoteAnswerError),
        (b"[" * 100_000, RemoteAnswerError),
        (b"9" * 9_000, RemoteAnswerError),
        (b'{"type": "observation", "data": {"observation": []}}', RemoteAnswerError),
        (b'{"type": "observation", "data": {"observation": {}, "reward": NaN}}', InvalidRewardError),
        (b'{"type": "observation", "data": {"observation": {}, "reward": "1"}}', InvalidRewardError),
        (b'{"type": "error", "data": {"code": {}, "message": [], "errors": 5}}', RemoteEnvironmentError),
        (b" " * (2**20 + 1), EnvironmentGoneError),
    ],
    ids=["nothing", "nested", "a long number", "a list", "NaN", "text", "types", "too long"],
)
def test_loses_episode_with_an_answer_that_cannot_be_read(frame, error):
    def answer(connection, request):
        accept(connection, request)
        connection.sendall(framed(frame))

    with hostile(answer) as address:
        playing = session(address)
        with pytest.raises(error):
            playing.ask("reset", {}, timeout_seconds=60)
        playing.close()


def test_loses_episode_of_a_connection_that_ends_within_an_answer():
    def answer(connection, request):
        accept(connection, request)
        connection.sendall(framed(b"{" * 5_000)[:100])
        connection.shutdown(socket.SHUT_RDWR)

    with hostile(answer) as address:
        playing = session(address)
        with pytest.raises(EnvironmentGoneError):
            playing.ask("reset", {}, timeout_seconds=60)


def test_leaves_an_answer_that_comes_in_drips():
    def answer(connection, request):
        accept(connection, request)
        endlessly(framed(b" " * 100_000)[:10], b" ")(connection, request)

    with hostile(answer) as address:
        playing = session(address)
        with pytest.raises(EnvironmentTimeoutError):
            playing.ask("reset", {}, timeout_seconds=_SECONDS)


def test_shortens_the_code_of_an_error():
    def fail(connection, request):
        accept(connection, request)
        error = json.dumps({"type": "error", "data": {"code": "E" * 60_000, "message": "M" * 5_000}}).encode()
        connection.sendall(framed(error))

    with hostile(fail) as address:
        playing = session(address)
        with pytest.raises(RemoteEnvironmentError) as failed:
            playing.ask("reset", {}, timeout_seconds=60)
        playing.close()
    assert len(str(failed.value)) < 3_000


def framed(text):
    """Return a text message of a WebSocket's server."""
    return b"\x81\x7f" + len(text).to_bytes(8, "big") + text


def session(address):
    return OpenEnvSession(address, timeout_seconds=60, max_message_bytes=2**20)


def accept(connection, request):
    """Answer the opening handshake of a WebSocket."""
    key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    connection.sendall(head + b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n")
