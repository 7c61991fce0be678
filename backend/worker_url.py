"""Where a worker listens: `unix:///path/to/socket` or `http://host:port`.

The URL and a token are all that is needed to reach a worker. Gateway, scheduler, pool and environment workers
store the URL and pass it on; only this module knows the kinds.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from backend.errors import ConfigError

LOOPBACK = "127.0.0.1"
_BACKLOG = 256
_ANSWER_SECONDS = 1.0

_reserved: dict[str, socket.socket] = {}
"""What keeps the ports of URLs that this process made."""


def new_url(transport: str, run_dir: Path, name: str) -> str:
    """Return a URL for a worker that is about to start.

    Args:
        transport: `unix` for a socket in `run_dir`, `tcp` for a free port of the loopback interface.
        run_dir: A folder that only this user can enter.
        name: The worker's name.
    """
    if transport == "unix":
        return unix_url(run_dir / f"{name}.sock")
    # Bound, but not listening, until `remove`: so no other user can take the port and be shown the token.
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind((LOOPBACK, 0))
    url = f"http://{LOOPBACK}:{place.getsockname()[1]}"
    _reserved[url] = place
    return url


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
    if parts.scheme == "http" and parts.hostname and parts.port and parts.path in ("", "/"):
        return None
    raise ConfigError(
        f"{url!r} is not the URL of a worker", hint="use unix:///path/to/socket or http://HOST:PORT"
    )


def listen(url: str) -> socket.socket:
    """Return a socket that listens there. A Unix socket left behind by a killed worker is replaced.

    Raises:
        ConfigError: It is not a worker's URL, or the port is taken.
    """
    path = socket_path(url)
    if path is None:
        # Whoever made the URL keeps the port by a socket of its own. Two workers of one user could share it.
        if is_answered(url):
            raise ConfigError(f"a worker cannot listen on {url}: something answers there already")
        try:
            return socket.create_server(_host_and_port(url), backlog=_BACKLOG, reuse_port=True)
        except OSError as error:
            raise ConfigError(f"a worker cannot listen on {url}: {error.strerror or error}") from error
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


def is_answered(url: str) -> bool:
    """Return whether a worker accepts connections there now."""
    path = socket_path(url)
    with suppress(OSError):
        if path is None:
            socket.create_connection(_host_and_port(url), timeout=_ANSWER_SECONDS).close()
        else:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
        return True
    return False


def remove(url: str) -> None:
    """Remove what a finished worker leaves behind: the file of a Unix socket, the reservation of a port."""
    path = socket_path(url)
    if path is None:
        if url in _reserved:
            _reserved.pop(url).close()
    else:
        with suppress(OSError):
            path.unlink()


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None, "socket_path has validated the URL"
    return parts.hostname, parts.port
