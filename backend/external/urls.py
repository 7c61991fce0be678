"""Which environment servers a job may name, and to which of their addresses a worker connects.

The operator lists origins. A name is resolved once; the addresses are checked, and one of them is used:
resolving it again after the check could give another one.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.environment_url import EnvironmentUrl, parse_environment_url
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.model import WireModel
from tinkergym.schema.names import REMOTE_ID, is_environment_url
from tinkergym.schema.parsing import parse

Resolve = Callable[[str, int], Sequence[str]]

_URL_FIELD = "environment.kwargs.url"
_LOCAL_NAMES = frozenset({"localhost"})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RemoteChoices(WireModel):
    """Arguments of `RemoteEnv` that a job may set; the service chooses the address."""

    url: str
    token: str = Field("", max_length=512, repr=False)
    """Without a token it gets none: the variable of the service's process belongs to the operator."""
    busy_seconds: float = Field(30.0, ge=0, le=600)
    reconnect_seconds: float = Field(10.0, ge=0, le=600)
    hold: Literal["session", "episode"] = "episode"
    """Places are freed after each episode, so there may be fewer places than episodes."""


def as_remote(ref: EnvironmentRef) -> EnvironmentRef:
    """Return `tinkergym/Remote-v0` for a reference whose id is an address; others unchanged."""
    if not is_environment_url(ref.id):
        return ref
    return EnvironmentRef(id=REMOTE_ID, kwargs={**ref.kwargs, "url": ref.id})


def is_remote(ref: EnvironmentRef) -> bool:
    """Whether the environment is on a server."""
    return ref.id == REMOTE_ID


def check_listed(ref: EnvironmentRef, listed: Sequence[str]) -> EnvironmentUrl:
    """Return the address of a remote environment, if the operator allows it. Does no networking.

    Args:
        ref: Reference of a remote environment.
        listed: `ServiceConfig.environment_urls`.

    Raises:
        InvalidRequestError: It is not listed, or a job may not set an argument.
    """
    try:
        url = parse_environment_url(parse(RemoteChoices, ref.kwargs).url)
    except InvalidRequestError as error:
        field = f"environment.kwargs.{error.field}"
        raise InvalidRequestError(error.message, hint=error.hint, field=field) from None
    if url.origin not in listed:
        raise InvalidRequestError(
            f"this service does not allow environments at {url.origin}",
            hint="play the episodes in your own process with rollout='client', "
            f"or ask the operator to add {url.origin!r} to environment_urls",
            field=_URL_FIELD,
        )
    return url


def look_up(url: EnvironmentUrl, listed: Sequence[str], resolve: Resolve | None = None) -> str:
    """Return the address to connect to.

    Every address of the name must be public, or listed itself, such as `ws://10.0.0.5:8300`: otherwise the
    owner of the name could direct the service into its own network.

    Args:
        url: URL of an allowed server.
        listed: `ServiceConfig.environment_urls`.
        resolve: Resolves a name; None uses the system.

    Raises:
        InvalidRequestError: The name is unknown, or one of its addresses is not allowed.
    """
    try:
        addresses = (resolve or _system_resolve)(url.host, url.port)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(
            f"{url.host} cannot be resolved: {error}", hint="check the name", field=_URL_FIELD
        ) from None
    for address in addresses:
        if url.host in (address, *_LOCAL_NAMES) or is_public(address):
            continue  # Exactly as listed by the operator.
        if _origin(url, address) not in listed:
            raise InvalidRequestError(
                f"{url.host} resolves to {address}, which is not a public address",
                hint=f"if this is intended, ask the operator to list {_origin(url, address)!r} in "
                f"environment_urls",
                field=_URL_FIELD,
            )
    if not addresses:
        raise InvalidRequestError(f"{url.host} has no address", hint="check the name", field=_URL_FIELD)
    # A server that listens on only one address usually uses IPv4.
    return min(addresses, key=lambda address: ":" in address)


def pinned(ref: EnvironmentRef, listed: Sequence[str], resolve: Resolve | None = None) -> EnvironmentRef:
    """Return the reference with the current, checked address of its name.

    Raises:
        InvalidRequestError: As `check_listed` and `look_up`.
    """
    address = look_up(check_listed(ref, listed), listed, resolve)
    choices = parse(RemoteChoices, ref.kwargs).model_dump()
    return EnvironmentRef(id=ref.id, kwargs={**choices, "address": address})


def is_public(text: str) -> bool:
    """Whether an address is public, also if it embeds another one."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.teredo is not None:
            return False
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved


def normal_origins(listed: Sequence[str]) -> list[str]:
    """Return the operator's list in normalized form.

    Raises:
        ValueError: An entry is not an origin.
    """
    origins = []
    for entry in listed:
        try:
            url = parse_environment_url(entry)
        except TinkerGymError as error:
            raise ValueError(str(error)) from None
        if url.path:
            raise ValueError(f"{entry!r} has a path; list only the origin: {url.origin!r}")
        origins.append(url.origin)
    return origins


def _origin(url: EnvironmentUrl, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{url.scheme}://{host}:{url.port}"


def _system_resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
