"""uvicorn on a socket that is already open, with a time limit for the header of a request.

The socket belongs to the supervisor, so that clients wait, instead of failing, while a killed
gateway comes back.
"""

from __future__ import annotations

import resource
import socket

import uvicorn
from fastapi import FastAPI

from backend.gateway.error_responses import error_response
from backend.network.server_stop import QuietServer
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import ServiceUnavailableError
from tinkergym.serving.connection_limits import PunctualHead

_SHUTDOWN_SECONDS = 1
_KEEP_ALIVE_SECONDS = 60
"""Longer than clients keep unused connections, or they would send on one that is being closed."""


_HEAD_SECONDS = 10.0
"""A header is small: a slow one is an incomplete request that will never be completed."""

_DESCRIPTORS_BESIDE = 500
"""File descriptors for files, the database and the connections to pools."""


def protocol(limits: GatewayLimits) -> type[PunctualHead]:
    """Return uvicorn's configuration for connections: a limited number, and none that stays half open."""
    refusal = ServiceUnavailableError(
        f"the service has {limits.connections} connections open, which is its limit",
        hint="try again in a second; the operator can raise limits.connections",
    )
    answer = error_response(refusal, "")
    head = [b"HTTP/1.1 503 Service Unavailable", b"Connection: close"]
    head += [name + b": " + value for name, value in answer.raw_headers]
    return PunctualHead.within(
        min(_HEAD_SECONDS, limits.request_seconds),
        limits.connections,
        b"\r\n".join([*head, b"", bytes(answer.body)]),
    )


def _allow_descriptors(wanted: int) -> None:
    """Raise this process's limit on open files, which is often 1024, as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve_on(listener: socket.socket, app: FastAPI, limits: GatewayLimits) -> None:
    """Serve until SIGTERM or SIGINT."""
    _allow_descriptors(limits.connections + _DESCRIPTORS_BESIDE)
    # Inherited by connections. asyncio also sets it, but only if it knows that the socket is TCP; without it,
    # the second packet of every response waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        # Event streams never end by themselves; clients resume them later.
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    QuietServer(config).run(sockets=[listener])
