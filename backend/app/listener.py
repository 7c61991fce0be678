"""The service's port, held by the supervisor so that it outlives any gateway."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from backend.config import ServiceConfig
from backend.errors import ConfigError

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@contextmanager
def listening(config: ServiceConfig) -> Iterator[socket.socket]:
    """Hold the port until the block ends.

    Raises:
        ConfigError: It is not available.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {config.port} on {config.host} is in use by another program",
                hint="stop it, or choose another port with --port 8266 (0 takes any free one)",
                field="port",
            ) from None
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on {config.host}, port {config.port}: {reason}",
            hint="use an address of this machine and a port above 1023",
            field="host" if error.errno != errno.EACCES else "port",
        ) from None
    with listener:
        yield listener


def url_of(host: str, listener: socket.socket) -> str:
    """Return the address at which a client on this machine reaches the listener."""
    host = _ANY_ADDRESS.get(host, host)
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
