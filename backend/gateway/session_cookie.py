"""Lets a browser's session stand for a key: its cookie becomes the request's key, around the application.

A cookie comes with every request that any page makes, so it counts only if a page of this service made it.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.dashboard.pages import cookie_name, is_same_origin

_READS = {"GET", "HEAD"}


class SessionCookie:
    """Wraps an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and (token := _token(scope)):
            added = (b"authorization", b"Bearer " + token.encode("latin-1"))
            scope = {**scope, "headers": [*scope["headers"], added]}
        await self._app(scope, receive, send)


def _token(scope: Scope) -> str:
    """Return the session's secret if this request may use it, or nothing."""
    headers = Headers(scope=scope)
    if "authorization" in headers or "cookie" not in headers:
        return ""
    # A request that acts must say where it comes from, as browsers do.
    known = scope["method"] in _READS or "origin" in headers
    if not known or not is_same_origin(headers):
        return ""
    return cookie_parser(headers["cookie"]).get(cookie_name(headers), "")
