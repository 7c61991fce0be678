"""What a read-only key may request: every GET, and the few other requests that change nothing."""

from __future__ import annotations

from fastapi import Request

from backend.store.keys import KeyRights
from tinkergym.errors import ReadOnlyKeyError

READS: frozenset[tuple[str, str]] = frozenset(
    {
        ("POST", "/v1/sample"),
        # Their bodies are too long for a URL.
        ("POST", "/v1/renderer"),
        ("POST", "/v1/images/missing"),
        ("POST", "/openai/v1/chat/completions"),
        ("POST", "/openai/v1/completions"),
        ("POST", "/openai/v1/responses"),
    }
)
"""Requests that read although they are no GET. Everything else that is no GET is refused."""


def require_right(request: Request, rights: KeyRights) -> None:
    """Refuse a request that the key does not allow.

    Raises:
        ReadOnlyKeyError: The key is read-only, and the request would change something.
    """
    route = request.method, request.scope["route"].path
    if rights.read_only and request.method != "GET" and route not in READS:
        raise ReadOnlyKeyError(
            f"this key is read-only: it may sample and read, and {request.method} {request.url.path} "
            "would change something",
            hint="use a key that was created without --read-only",
        )
