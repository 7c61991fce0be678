"""Names shared by client, server and service. Imports nothing, because `import tinkergym` reads it."""

from __future__ import annotations

from typing import Final

REMOTE_ID: Final = "tinkergym/Remote-v0"
"""The environment that connects to an environment server."""

TOKEN_VARIABLE: Final = "TINKERGYM_ENV_TOKEN"
