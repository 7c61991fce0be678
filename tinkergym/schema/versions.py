"""The version, and whether those of a client and a service are compatible."""

from __future__ import annotations

import re

from tinkergym.errors import VersionMismatchError

__version__ = "0.1.0"

VERSION_HEADER = "Tinkergym-Version"
"""The header with the client's version, sent with every request."""


def require_same_version(client: str, service: str) -> None:
    """Refuse incompatible versions: all numbers but the last must be equal.

    Raises:
        VersionMismatchError: They differ. The message has the command to run on the client's machine.
    """
    if _series(client) == _series(service):
        return
    raise VersionMismatchError(
        f"this client is tinkergym {client[:40]}, and the service is {service[:40]}",
        hint=f"run here: pip install 'tinkergym=={service[:40]}'; or ask the service's operator to install "
        f"{client[:40]}",
    )


def _series(version: str) -> tuple[str, ...]:
    return tuple(re.split(r"[.+-]", version)[:2])
