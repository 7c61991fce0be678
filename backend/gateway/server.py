"""uvicorn on a socket that is already open, with a limit on how long the head of a request may take.

The socket belongs to the supervisor, so that clients wait, instead of failing, while a killed
gateway comes back.
"""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from tinkergym.serving.punctual import PunctualHead

_SHUTDOWN_SECONDS = 1
_KEEP_ALIVE_SECONDS = 60


def serve_on(listener: socket.socket, app: FastAPI, head_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT."""
    # Connections inherit it. asyncio sets it too, but only where it knows that the socket is TCP; without it,
    # the second packet of every answer waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app,
        http=PunctualHead.within(head_seconds),
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        # Event streams never end by themselves; clients take them up again elsewhere.
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])
