"""Who asks, and with what body: the two things that nearly every route needs first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool

from backend.gateway.parts import parts_of
from backend.store.store import TenantStore
from tinkergym.errors import AuthenticationError, InvalidRequestError
from tinkergym.spec_errors import explain

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

_SMALL_BODY_BYTES = 64 * 1024


async def _tenant(request: Request) -> TenantStore:
    store = parts_of(request).store
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise AuthenticationError(
            "the request carries no API key",
            hint="send `Authorization: Bearer tg-...`; set TINKERGYM_API_KEY",
        )
    # On the event loop: every turn of every episode comes here. Mostly it is remembered, and a read by index,
    # which never waits for a writer, takes less than a change of threads on a busy machine.
    tenant_id = store.keys.tenant_of(key.strip())
    if tenant_id is None:
        raise AuthenticationError("the API key is unknown or revoked", hint="check TINKERGYM_API_KEY")
    return store.tenant(tenant_id)


Tenant = Annotated[TenantStore, Depends(_tenant)]
"""The store as the tenant of the request's key sees it; without a valid key the route is not reached."""


def body_of(model: type[Model]) -> Callable[[Request, Tenant], Awaitable[Model]]:
    """Return a dependency that reads the body as `model`, straight from the bytes.

    It asks for the tenant so that nobody's body is read before their key.
    """

    async def read(request: Request, _tenant: Tenant) -> Model:
        try:
            return await _aside(model.model_validate_json, await request.body())
        except ValidationError as error:
            raise explain(error, model) from None

    return read


async def _json_object(request: Request, _tenant: Tenant) -> dict[str, Any]:
    try:
        value = await _aside(from_json, await request.body())
    except ValueError as error:
        raise InvalidRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"the body must be a JSON object, not {type(value).__name__}")
    return value


JsonObject = Annotated[dict[str, Any], Depends(_json_object)]
"""The body as plain JSON, for what is validated elsewhere."""


async def _aside(read: Callable[[bytes], Value], body: bytes) -> Value:
    """Read a large body in a thread, where it keeps nobody waiting; a small one here, which is faster."""
    return read(body) if len(body) < _SMALL_BODY_BYTES else await run_in_threadpool(read, body)


def describes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that `body_of` reads."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)  # the names alone; the schema of record is tinkergym/wire.py
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
