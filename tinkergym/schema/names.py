"""Names that client, server and service agree on. Imports nothing: `import tinkergym` reads it."""

from __future__ import annotations

from typing import Final

REMOTE_ID: Final = "tinkergym/Remote-v0"
"""The environment that is a client of a server."""

TOKEN_VARIABLE: Final = "TINKERGYM_ENV_TOKEN"
