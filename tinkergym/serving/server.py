"""`tinkergym serve-env`: the application on a socket, until a signal comes."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tinkergym.errors import InvalidRequestError
from tinkergym.serving.connection_limits import PunctualHead, PunctualReader
from tinkergym.serving.making import description_of
from tinkergym.serving.server_app import create_app
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.serving.wire_protocol import Message

_SHUTDOWN_SECONDS = 2
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""After 10 s of silence the kernel probes every 5 s, and gives up the connection after 4 probes."""


class PunctualSocket(PunctualReader, WebSocketsSansIOProtocol):
    """A WebSocket that disconnects a client that does not read; uvicorn itself waits forever.

    Based on the one of uvicorn's protocols that does not buffer: a frame that is too long is refused by its
    header.
    """


def serve(settings: ServerSettings, ready: Callable[[str, Message], None]) -> None:
    """Serve until SIGTERM or SIGINT, then close all environments.

    Args:
        settings: The server's settings.
        ready: Called with the URL and the environment's description when clients can connect.

    Raises:
        InvalidRequestError: The environment cannot be created or served, or the address is not available.
    """
    listener = listen(settings.host, settings.port)
    with listener:
        description = description_of(settings)
        server = uvicorn.Server(uvicorn_config(settings, description))
        # After its clean shutdown uvicorn raises the signal again, for the previous handler.
        previous = signal.signal(signal.SIGTERM, lambda *_: None)
        ready(url_of(settings.host, listener), description)
        try:
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, previous)


def listen(host: str, port: int) -> socket.socket:
    """Open the server's socket.

    Raises:
        InvalidRequestError: The port is in use, or the address is not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidRequestError(
                f"port {port} on {host} is in use by another program",
                hint="stop it, or choose another port with --port (0 takes any free one)",
                field="port",
            ) from None
        raise InvalidRequestError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}",
            hint="use an address of this machine and a port above 1023",
            field="port" if error.errno == errno.EACCES else "host",
        ) from None
    # Inherited by connections; without it, responses wait for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanished closes no connection; the kernel probes it, and its lease begins.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all of them.
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Return the address at which a client on this machine reaches the listener."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = listener.getsockname()[1]
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


def _is_news(record: logging.LogRecord) -> bool:
    # uvicorn logs this whenever a client without the token is refused.
    return "without completing handshake" not in record.getMessage()


def uvicorn_config(settings: ServerSettings, description: Message) -> uvicorn.Config:
    """Return uvicorn's configuration for the application."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        create_app(settings, description),
        http=PunctualHead.within(settings.open_timeout_seconds),
        ws=PunctualSocket,
        ws_max_size=settings.max_message_bytes,
        # Compressing such short text takes longer than sending it.
        ws_per_message_deflate=False,
        # A client that waits for its policy does not answer pings; sessions have their own idle timeout.
        ws_ping_interval=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
