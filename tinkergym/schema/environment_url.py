"""Addresses of environment servers. Does no networking."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.names import is_environment_url

_DEFAULT_PORTS = {"ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentUrl:
    """The address of an environment server."""

    scheme: str
    """`ws`, or `wss` for TLS."""
    host: str
    """Lower-case name or address; an IPv6 address without brackets."""
    port: int
    path: str
    """The path before the protocol's own; empty or `/...`."""

    @property
    def origin(self) -> str:
        """The URL without its path, in a normalized form with the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __str__(self) -> str:
        return self.origin + self.path


def parse_environment_url(text: object) -> EnvironmentUrl:
    """Parse a URL.

    Raises:
        InvalidRequestError: It is not a `ws://` or `wss://` address, or has a user, a query or a fragment.
    """
    hint = "write ws://HOST:PORT, or wss://HOST for a server behind TLS"
    if not isinstance(text, str) or not is_environment_url(text):
        raise InvalidRequestError(
            f"{text!r:.200} is not a valid environment server address", hint=hint, field="url"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidRequestError(f"{text[:200]!r}: {error}", hint=hint, field="url") from None
    if not parts.hostname or not (parts.hostname + parts.path).isascii() or any(c <= " " for c in text):
        raise InvalidRequestError(f"{text[:200]!a} has no valid host", hint=hint, field="url")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidRequestError(
            "the address may have only a host, a port and a path",
            hint="pass the token as token=",
            field="url",
        )
    scheme = parts.scheme.lower()
    return EnvironmentUrl(
        scheme=scheme,
        host=parts.hostname.lower().rstrip("."),
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        path=parts.path.rstrip("/"),
    )
