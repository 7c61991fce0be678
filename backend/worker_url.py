"""Where a worker listens: `unix:///path/to/socket` or `http://host:port`.

The URL and a token are all that is needed to reach a worker. A worker makes both itself, on its own machine,
and registers them; everyone else reads them from the store. Only this module knows the kinds of URLs.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from backend.errors import ConfigError

LOOPBACK = "127.0.0.1"
_BACKLOG = 256


def any_port(host: str = LOOPBACK) -> str:
    """Return the URL that lets `listen` choose a free port of this address of this machine."""
    return f"http://{f'[{host}]' if ':' in host else host}:0"


def require_private(host: str, *, private_network: bool) -> None:
    """Refuse to send tokens and episodes over a network that others may read.

    Raises:
        ConfigError: The address is not a loopback address, and the operator has not said that the network is
            private.
    """
    if not private_network and not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            f"a worker would listen on {host} without encryption",
            hint="set private_network=true if only the service's own machines can reach this network",
            field="private_network",
        )


def unix_url(path: Path) -> str:
    """Return the URL of a Unix socket."""
    return f"unix://{path}"


def socket_path(url: str) -> Path | None:
    """Return the path of a Unix socket's URL, None for another kind of URL.

    Raises:
        ConfigError: It is not a worker's URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Path(parts.path)
    if parts.scheme == "http" and parts.hostname and parts.port is not None and parts.path in ("", "/"):
        return None
    raise ConfigError(
        f"{url!r} is not the URL of a worker", hint="use unix:///path/to/socket or http://HOST:PORT"
    )


def listen(url: str) -> tuple[socket.socket, str]:
    """Return a socket that listens there, and its URL with the port that was chosen for port 0.

    A Unix socket left behind by a killed worker is replaced.

    Raises:
        ConfigError: It is not a worker's URL, or the port is taken.
    """
    path = socket_path(url)
    if path is None:
        host, port = _host_and_port(url)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            server = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"a worker cannot listen on {url}: {error.strerror or error}") from error
        return server, f"{any_port(host)[:-1]}{server.getsockname()[1]}"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener, url


def remove(url: str) -> None:
    """Remove what a finished worker leaves behind: the file of a Unix socket."""
    path = socket_path(url)
    if path is not None:
        with suppress(OSError):
            path.unlink()


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None, "socket_path has validated the URL"
    return parts.hostname, parts.port
