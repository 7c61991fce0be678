"""Whether a client and a service speak the same version of what they say to each other."""

from __future__ import annotations

import re

from tinkergym.errors import VersionMismatchError

VERSION_HEADER = "Tinkergym-Version"
"""Every request of a client carries its version."""


def require_same_version(client: str, service: str) -> None:
    """Refuse versions that may not understand each other: all but the last number must be equal.

    Raises:
        VersionMismatchError: Says what to type, where the client is.
    """
    if _series(client) == _series(service):
        return
    raise VersionMismatchError(
        f"this client is tinkergym {client[:40]}, and the service is {service[:40]}",
        hint=f"type here: pip install 'tinkergym=={service[:40]}'; or have the service's operator install "
        f"{client[:40]}",
    )


def _series(version: str) -> tuple[str, ...]:
    return tuple(re.split(r"[.+-]", version)[:2])
