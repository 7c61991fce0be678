"""Which environment servers a job may name, and to which address of theirs a worker connects.

The operator lists origins. A name is looked up once; the addresses found are checked, and one of them is what
is connected to: looking it up again, between check and use, could give another.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.environment_url import EnvironmentUrl, is_environment_url, parse_environment_url
from tinkergym.schema.job_spec import EnvironmentRef
from tinkergym.schema.model import WireModel
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.parsing import parse

Resolve = Callable[[str, int], Sequence[str]]

_URL_FIELD = "environment.kwargs.url"
_LOCAL_NAMES = frozenset({"localhost"})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RemoteChoices(WireModel):
    """What a job may set of `RemoteEnv`; the address is the service's choice."""

    url: str
    token: str = Field("", max_length=512, repr=False)
    """Without one it gets none: a variable of the service's process belongs to the operator."""
    busy_seconds: float = Field(30.0, ge=0, le=600)
    reconnect_seconds: float = Field(10.0, ge=0, le=600)
    hold: Literal["session", "episode"] = "episode"
    """Places are given back after each episode, so that fewer of them than episodes can do."""


def as_remote(ref: EnvironmentRef) -> EnvironmentRef:
    """Return `tinkergym/Remote-v0` for a reference whose id is an address; any other as it is."""
    if not is_environment_url(ref.id):
        return ref
    return EnvironmentRef(id=REMOTE_ID, kwargs={**ref.kwargs, "url": ref.id})


def is_remote(ref: EnvironmentRef) -> bool:
    """Whether the environment is behind a server."""
    return ref.id == REMOTE_ID


def check_listed(ref: EnvironmentRef, listed: Sequence[str]) -> EnvironmentUrl:
    """Return the address of a remote environment, if the operator allows it. Asks no network.

    Args:
        ref: Of a remote environment.
        listed: `ServiceConfig.environment_urls`.

    Raises:
        InvalidRequestError: It is not listed, or an argument is not for a job to set.
    """
    try:
        url = parse_environment_url(parse(RemoteChoices, ref.kwargs).url)
    except InvalidRequestError as error:
        field = f"environment.kwargs.{error.field}"
        raise InvalidRequestError(error.message, hint=error.hint, field=field) from None
    if url.origin not in listed:
        raise InvalidRequestError(
            f"this service does not play in environments at {url.origin}",
            hint="play the episodes in your own process with rollout='client', "
            f"or let the operator add {url.origin!r} to environment_urls",
            field=_URL_FIELD,
        )
    return url


def look_up(url: EnvironmentUrl, listed: Sequence[str], resolve: Resolve | None = None) -> str:
    """Return the address to connect to.

    Every address of the name must be a public one, or be listed itself, as `ws://10.0.0.5:8300`: else
    whoever owns the name could lead the service into its own network.

    Args:
        url: Of an allowed server.
        listed: `ServiceConfig.environment_urls`.
        resolve: Looks a name up; None asks the system.

    Raises:
        InvalidRequestError: The name is unknown, or an address of it is not allowed.
    """
    try:
        addresses = (resolve or _system_resolve)(url.host, url.port)
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(
            f"{url.host} is not known here: {error}", hint="check the name", field=_URL_FIELD
        ) from None
    for address in addresses:
        if url.host in (address, *_LOCAL_NAMES) or is_public(address):
            continue  # what the operator wrote down, as it stands
        if _origin(url, address) not in listed:
            raise InvalidRequestError(
                f"{url.host} is at {address}, which is not a public address",
                hint=f"if that is meant, let the operator list {_origin(url, address)!r} in environment_urls",
                field=_URL_FIELD,
            )
    if not addresses:
        raise InvalidRequestError(f"{url.host} has no address", hint="check the name", field=_URL_FIELD)
    # A server that listens on one address only does so on the older kind.
    return min(addresses, key=lambda address: ":" in address)


def pinned(ref: EnvironmentRef, listed: Sequence[str], resolve: Resolve | None = None) -> EnvironmentRef:
    """Return the reference with the address that its name has now, checked.

    Raises:
        InvalidRequestError: As `check_listed` and `look_up`.
    """
    address = look_up(check_listed(ref, listed), listed, resolve)
    choices = parse(RemoteChoices, ref.kwargs).model_dump()
    return EnvironmentRef(id=ref.id, kwargs={**choices, "address": address})


def is_public(text: str) -> bool:
    """Whether an address is one of the open internet, also where it wraps another one."""
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
    """Return the operator's list in one spelling.

    Raises:
        ValueError: An entry is no origin.
    """
    origins = []
    for entry in listed:
        try:
            url = parse_environment_url(entry)
        except TinkerGymError as error:
            raise ValueError(str(error)) from None
        if url.path:
            raise ValueError(f"{entry!r} has a path; list the origin alone: {url.origin!r}")
        origins.append(url.origin)
    return origins


def _origin(url: EnvironmentUrl, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{url.scheme}://{host}:{url.port}"


def _system_resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
