"""Origins that a service's operator allows, for code that runs in the service's processes.

The service passes the list to its processes in an environment variable. Without the variable, as in a client,
every origin is allowed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from tinkergym.network.model_urls import origin_of


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
