"""URLs and keys of models: what may be one, where it leads, and which origins an operator allows.

The service passes the list of origins to its processes in an environment variable. Without the variable, as
in a client, every origin is allowed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from tinkergym.errors import InvalidRequestError


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_url(url: str) -> None:
    """Check that a URL can be the base of an API.

    Raises:
        InvalidRequestError: It cannot, or it contains a user name or password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(
            f"{url!r} is not an http or https URL",
            hint="give the API's base, as https://host/v1",
            field="url",
        )
    if parts.username or parts.password:
        raise InvalidRequestError(
            "the URL contains a user name or password, which logs would show",
            hint="pass api_key instead",
            field="url",
        )


def check_key(api_key: object) -> None:
    """Check that a key is valid in a header.

    Raises:
        InvalidRequestError: It is not.
    """
    if api_key and not (isinstance(api_key, str) and re.fullmatch(r"[!-~]+", api_key)):
        # The HTTP library would refuse it too, and show it in its error.
        raise InvalidRequestError(
            "the key has characters that are not allowed in a header, such as a line break at its end",
            hint="strip it",
            field="api_key",
        )


def origin_list(entries: Sequence[str]) -> list[str]:
    """Return an operator's list of origins in a canonical form.

    Raises:
        ValueError: An entry is not an origin.
    """
    for entry in entries:
        parts = urlsplit(entry)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{entry!r} is not an origin; write https://models.example.org")
        if parts.username or parts.password:
            raise ValueError("an origin has no user name or password; jobs bring their keys")
    return [origin_of(entry) for entry in entries]


def allow_only(variable: str, origins: Sequence[str]) -> None:
    """Allow only these origins in this process and its children.

    Args:
        variable: The environment variable of the list.
        origins: As `origin_list` returns them.
    """
    os.environ[variable] = json.dumps(list(origins))


def refused_origin(variable: str, url: str) -> str | None:
    """Return the origin of a URL that this process may not call; None if it may."""
    written = os.environ.get(variable)
    if written is None:
        return None
    origin = origin_of(url)
    return None if origin in json.loads(written) else origin
