"""The dashboard's pages: one document for all of them, its files, and logging in and out.

The document is the same for everybody; what it shows comes from the HTTP API, with the cookie of a session
instead of a key. So another frontend can do everything that this one does.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Template
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from backend.dashboard.frontend import Frontend
from backend.store.key_rows import LOCAL_TENANT, SESSION_SECONDS, KeyRights
from tinkergym import __version__

HOME = "/dashboard"
_LOGIN = f"{HOME}/login"
_MOST_BODY_BYTES = 4096

_HEADERS = {
    # No script or style in the page, and nothing from anywhere else.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # `no-referrer` would also take the origin from the login form's request, which is checked.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class DashboardParts(Protocol):
    """What the pages need of the gateway."""

    @property
    def frontend(self) -> Frontend:
        """The files that browsers load."""

    async def rights_of(self, key: str) -> KeyRights | None:
        """Return whose key, or session, it is and what it allows."""

    async def open_session(self, key: str) -> str | None:
        """Return a session with the rights of a key; None if the key is not valid."""

    async def close_session(self, token: str) -> None:
        """End a session."""


def cookie_name(headers: Headers) -> str:
    """Return the name of the session's cookie: browsers share cookies between a machine's ports."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"tinkergym-{port}" if port.isdigit() else "tinkergym"


def is_same_origin(headers: Headers) -> bool:
    """Whether a page of this service sent the request, as the browser says. Other programs say nothing."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        return False
    # Its scheme is not compared: behind a proxy ours is unknown.
    return origin is None or origin.partition("://")[2] == headers.get("host")


def dashboard_routes(route_class: type[APIRoute]) -> APIRouter:
    """Return the routes, which are of a class that gives what blocks its threads."""
    router = APIRouter(route_class=route_class, include_in_schema=False)
    router.add_api_route("/", _to_pages, response_class=Response)
    router.add_api_route(f"{HOME}/static/{{path:path}}", _static, response_class=Response)
    router.add_api_route(_LOGIN, _log_in_page, response_class=Response)
    router.add_api_route(_LOGIN, _log_in, methods=["POST"], response_class=Response)
    router.add_api_route(f"{HOME}/logout", _log_out, methods=["POST"], response_class=Response)
    router.add_api_route(HOME, _page, response_class=Response)
    router.add_api_route(f"{HOME}/{{path:path}}", _page, response_class=Response)
    return router


async def _to_pages(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", ""):  # no browser
        raise HTTPException(404)
    return RedirectResponse(HOME, 303)


async def _static(request: Request, path: str) -> Response:
    """Return a file of the frontend."""
    file = _parts(request).frontend.files.get(path)
    if file is None:
        return PlainTextResponse("there is no such file", 404, headers=_HEADERS)
    headers = _HEADERS | {"ETag": file.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)


async def _page(request: Request, path: str = "") -> Response:
    """Return the document of a page, or send its reader to the login."""
    rights = await _parts(request).rights_of(request.cookies.get(cookie_name(request.headers), ""))
    if rights is None:
        return RedirectResponse(f"{_LOGIN}?next={quote(request.url.path, safe='/')}", 303, headers=_HEADERS)
    return _shown(request, page=path.partition("/")[0] or "overview", path=path, rights=rights)


async def _log_in_page(request: Request) -> Response:
    """Return the page that asks for a key."""
    return _shown(request, page="login", next=request.query_params.get("next", ""))


async def _log_in(request: Request) -> Response:
    """Open a session for a key."""
    if not is_same_origin(request.headers):
        return _shown(request, 403, page="login", refusal="The request came from another page; log in here.")
    form = await _form(request)
    token = await _parts(request).open_session(form.get("key", "").strip())
    if token is None:
        refusal = "This key is unknown or revoked."
        return _shown(request, 401, page="login", next=form.get("next", ""), refusal=refusal)
    wanted = form.get("next", "")
    # Only a page of ours: `//elsewhere` and `https:` are none.
    response = RedirectResponse(wanted if wanted.startswith(f"{HOME}/") else HOME, 303, headers=_HEADERS)
    response.set_cookie(
        cookie_name(request.headers),
        token,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


async def _log_out(request: Request) -> Response:
    """End the session, everywhere its cookie is."""
    if not is_same_origin(request.headers):
        return PlainTextResponse("the request came from another page", 403, headers=_HEADERS)
    name = cookie_name(request.headers)
    await _parts(request).close_session(request.cookies.get(name, ""))
    response = RedirectResponse(_LOGIN, 303, headers=_HEADERS)
    response.delete_cookie(name, httponly=True, samesite="strict")
    return response


async def _form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY_BYTES:
            return {}
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _shown(request: Request, status: int = 200, **values: object) -> Response:
    page: Template = _parts(request).frontend.page
    known = {"version": __version__, "path": "", "rights": None, "refusal": "", "next": ""}
    known |= {"operator": LOCAL_TENANT}
    headers = _HEADERS | {"Cache-Control": "no-store"}
    return HTMLResponse(page.render(known | values), status, headers=headers)


def _parts(request: Request) -> DashboardParts:
    parts: DashboardParts = request.app.state.parts
    return parts
