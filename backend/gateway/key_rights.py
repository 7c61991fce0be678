"""What a key with limits may request.

A read-only one: every GET, and the few other requests that change nothing. One with a rate: all but jobs.
"""

from __future__ import annotations

from fastapi import Request

from backend.store.key_rows import KeyRights
from tinkergym.errors import LimitedKeyError, ReadOnlyKeyError

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

STARTS: frozenset[tuple[str, str]] = frozenset(
    {("POST", "/v1/jobs"), ("POST", "/v1/jobs/{job_id}/resume"), ("POST", "/v1/jobs/{job_id}/update")}
)
"""Requests by which a job samples more. The pool samples for it, and no rate counts that. What is played for
an evaluation, a cross-play or a branch is sampled with the key, and counts."""


def require_right(request: Request, rights: KeyRights) -> None:
    """Refuse a request that the key does not allow.

    Raises:
        ReadOnlyKeyError: The key is read-only, and the request would change something.
        LimitedKeyError: The key has a rate, and a job would sample without one.
    """
    route = request.method, request.scope["route"].path
    if rights.read_only and request.method != "GET" and route not in READS:
        raise ReadOnlyKeyError(
            f"this key is read-only: it may sample and read, and {request.method} {request.url.path} "
            "would change something",
            hint="use a key that was created without --read-only",
        )
    if rights.rate is not None and route in STARTS:
        raise LimitedKeyError(
            "this key has a rate, and a job would sample beyond it",
            hint="start jobs with a key that was created without --requests-per-minute and "
            "--tokens-per-minute; this one may sample",
        )
