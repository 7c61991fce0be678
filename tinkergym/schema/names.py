"""Names shared by client, server and service. Imports nothing, because `import tinkergym` reads it."""

from __future__ import annotations

import re
from typing import Final

REMOTE_ID: Final = "tinkergym/Remote-v0"
"""The environment that connects to an environment server."""

LOCAL: Final = "local/"
"""Prefix of ids for classes and functions that a script passes; packs cannot register such ids."""

PROGRAM: Final = f"{LOCAL}program/"
"""Prefix of ids for agent programs, which are played in place of an environment."""

_V0: Final = "-v0"

TOKEN_VARIABLE: Final = "TINKERGYM_ENV_TOKEN"


def is_environment_url(text: str) -> bool:
    """Whether an environment was given by address instead of by id."""
    return text.lower().startswith(("ws://", "wss://"))


def is_remote(environment: str) -> bool:
    """Whether an id or an address means an environment of a server."""
    return environment == REMOTE_ID or "://" in environment


def local_name(environment: str) -> str:
    """Return the name of a class or function that a script passed, from its id."""
    return environment.removeprefix(LOCAL).removesuffix(_V0)


def local_id(source: object, prefix: str = LOCAL) -> str:
    """Return the id of a class or function that a script passes as an environment, or as a program."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "", getattr(source, "__name__", type(source).__name__))
    return f"{prefix}{name or 'environment'}{_V0}"
