"""Refuses requests whose Host header names another service, around the application.

A web page elsewhere can give its own name the address of this machine (DNS rebinding), and then its scripts
reach this service as if it were the page's own. Their requests still carry the page's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.gateway.error_responses import error_response
from tinkergym.errors import MisdirectedRequestError


class HostCheck:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """Accept requests to `localhost`, to these names, and to any IP address (never rebound)."""
        self._app = app
        self._names = {"localhost", *map(_normal, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. One without the header comes from no browser."""
        if scope["type"] == "http":
            for host in Headers(scope=scope).getlist("host"):
                if not self._is_ours(host):
                    await error_response(_misdirected(host), scope["path"])(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        # The last colon of an IPv6 address without a port is inside its brackets.
        name = _normal(name if colon and "]" not in port else host)
        return name in self._names or _is_address(name)


def _normal(name: str) -> str:
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _misdirected(host: str) -> MisdirectedRequestError:
    return MisdirectedRequestError(
        f"this service is not known as {host[:200]!r}",
        hint="use its IP address, or ask the operator to add the name: "
        "tinkergym serve --set 'host_names=[\"NAME\"]'",
        field="Host",
    )
