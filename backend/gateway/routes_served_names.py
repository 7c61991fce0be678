"""Names to which a tenant promotes versions, for requests of the OpenAI API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.wiring import parts_of
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.served_names import Promotion, ServedName, ServedNames, name_fault

router = APIRouter(prefix="/v1/names", route_class=FairRoute)


@router.get("")
def list_names(tenant: Tenant) -> ServedNames:
    """List your names, and which versions they serve."""
    return ServedNames(names=list(tenant.names.all().values()))


@router.put("/{name}", openapi_extra=describes(Promotion))
async def promote(
    request: Request, tenant: Tenant, name: str, wanted: Annotated[Promotion, Depends(body_of(Promotion))]
) -> ServedName:
    """Let a name serve a version of a policy, or a share of its requests."""
    if fault := name_fault(name):
        raise fault.error()
    if name in parts_of(request).config.models:
        reason = f"{name!r} is a model of this service"
        raise Refusal("name", reason, "choose another name", "taken").error()
    return await in_turn(tenant.tenant_id, tenant.names.promote, name, wanted)


@router.delete("/{name}")
def remove_name(tenant: Tenant, name: str) -> ServedNames:
    """Remove a name; returns those that are left. Its policy stays."""
    tenant.names.remove(name)
    return ServedNames(names=list(tenant.names.all().values()))
