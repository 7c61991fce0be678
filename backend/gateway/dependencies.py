"""What nearly every route depends on: the authenticated tenant, and the request's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request, Security
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.datastructures import Headers

from backend.gateway.fair_threads import FairThreads
from backend.gateway.key_rights import require_right
from backend.gateway.wiring import parts_of
from backend.store.store import TenantStore
from tinkergym import __version__
from tinkergym.errors import AuthenticationError, InvalidRequestError, PayloadTooLargeError
from tinkergym.schema.parsing import parse_json
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.versions import VERSION_HEADER, require_same_version

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

_SMALL_BODY_BYTES = 64 * 1024

_BYTES_PER_VALUE = 8
_BYTES_PER_READ_VALUE = 16
"""Attribute for what the gateway reads itself instead of passing on."""

_BYTES_PER_KEY = 80
"""A body may contain one value, and one key, per this many bytes of `limits.body_bytes`. Parsed, a value
takes up to 60 bytes and a key several hundred, and Python's lock is held meanwhile."""


# Described for the OpenAPI document. The key is read below, which refuses in our own format.
_BEARER = HTTPBearer(scheme_name="ApiKey", description="`Authorization: Bearer tg-...`", auto_error=False)


def key_of(request: Request) -> str:
    """Return the request's API key, or nothing."""
    return key_in(request.headers)


def own_url(request: Request) -> str:
    """Return the address that the request came to, for a process here that samples like any client."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def key_in(headers: Headers) -> str:
    """Return the API key in these headers, in any spelling, or None."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


async def _tenant(
    request: Request, _described: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)] = None
) -> TenantStore:
    parts, key = parts_of(request), key_of(request)
    client_version = request.headers.get(VERSION_HEADER)
    if client_version is not None:
        require_same_version(client_version, __version__)
    if not key:
        raise AuthenticationError(
            "the request has no API key",
            hint="send `Authorization: Bearer tg-...`; set TINKERGYM_API_KEY",
        )
    rights = await parts.rights_of(key)
    if rights is None:
        raise AuthenticationError("the API key is unknown or revoked", hint="check TINKERGYM_API_KEY")
    require_right(request, rights)
    tenant = parts.store.tenant(rights.tenant_id)
    request.state.tenant_id, request.state.is_local_owner = tenant.tenant_id, tenant.is_local_owner
    request.state.rate, request.state.read_only = rights.rate, rights.read_only
    return tenant


Tenant = Annotated[TenantStore, Depends(_tenant)]
"""Return the store as the tenant of the request's key sees it; an invalid key never reaches the route."""


async def _body(request: Request, _tenant: Tenant) -> bytearray:
    """Read the body, which then belongs to the caller only: `request.body()` would keep a copy until the end.

    Depends on the tenant, so that no body is read before its key.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


NumberPath = Annotated[int, Path(ge=0, le=10**12)]
"""A number in a path, such as of a step or a call."""

NumberQuery = Annotated[int, Query(ge=0, le=10**12)]

Body = Annotated[bytearray, Depends(_body)]
"""Return the raw body."""


def body_of(model: type[Model]) -> Callable[[Request, Body], Awaitable[Model]]:
    """Return a dependency that parses the body as `model`, directly from the bytes."""

    async def read(request: Request, body: Body) -> Model:
        return await aside(request, lambda: read_as(request, model, body), body)

    return read


def read_as(request: Request, model: type[Model], body: bytearray) -> Model:
    """Parse a body as `model`; blocks meanwhile.

    Raises:
        InvalidRequestError: It is invalid.
        PayloadTooLargeError: It contains too many values.
    """
    refuse_many_values(request, body, _BYTES_PER_READ_VALUE)
    return parse_json(model, body)


def refuse_many_values(
    request: Request, body: bytes | bytearray, bytes_per_value: int = _BYTES_PER_VALUE
) -> None:
    """Refuse a body whose values would take many times its size in memory, before parsing it.

    Raises:
        PayloadTooLargeError: It is such a body.
    """
    size = parts_of(request).config.limits.body_bytes
    # Counts inside strings, too: telling those apart would require parsing the body.
    keys, values = body.count(b":"), body.count(b",") + body.count(b"[") + body.count(b"{")
    for found, most, what in (
        (keys, size // _BYTES_PER_KEY, "keys"),
        (values, size // bytes_per_value, "values"),
    ):
        if found > most:
            raise PayloadTooLargeError(
                f"the request's body contains about {found} {what}, more than the limit of {most}",
                hint="send less at once, or ask the operator to raise limits.body_bytes",
                field="body",
            )


def json_object(body: bytearray) -> dict[str, Any]:
    """Parse a body as plain JSON that is validated elsewhere.

    Raises:
        InvalidRequestError: It is not a JSON object.
    """
    try:
        value = from_json(body)
    except ValueError as error:
        raise _no_object(f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _no_object(f"must be a JSON object, not {type(value).__name__}")
    return value


def _no_object(reason: str) -> InvalidRequestError:
    return Refusal("body", reason, "send an object as in /v1/openapi.json", "not_json").error()


async def aside(request: Request, read: Callable[[], Value], body: bytearray) -> Value:
    """Parse a large body in a thread, in the tenant's turn; a small one here, which is faster."""
    if len(body) < _SMALL_BODY_BYTES:
        return read()
    threads: FairThreads = request.app.state.large_bodies
    return await threads.run(request.state.tenant_id, read)


_REF = "#/components/schemas/{model}"
_BODIES: list[type[BaseModel]] = []


def describes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that `body_of` reads."""
    _BODIES.append(model)
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document; it is made by the first request for it."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_REF)
        made["components"]["schemas"] = bodies["$defs"] | made["components"]["schemas"]
        app.openapi_schema = made
    return app.openapi_schema
