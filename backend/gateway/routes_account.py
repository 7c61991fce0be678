"""What a tenant has used, and its keys."""

from __future__ import annotations

from fastapi import APIRouter, Request

from backend.gateway.dependencies import Tenant
from backend.gateway.fair_threads import FairRoute
from backend.gateway.wiring import parts_of
from tinkergym.schema.summaries import KeyList, UsageView

router = APIRouter(prefix="/v1", route_class=FairRoute)


@router.get("/usage")
def show_usage(request: Request, tenant: Tenant) -> UsageView:
    """Return what the tenant's jobs have used, by model; for the local owner, those of all tenants."""
    images, prices = tenant.images.all(), parts_of(request).config.prices
    used = tenant.usage(of_all=tenant.is_local_owner)
    return UsageView(
        jobs=[
            one.model_copy(update={"cost": prices.cost(one.used_seconds, one.used_tokens)}) for one in used
        ],
        images=len(images),
        image_bytes=sum(one.bytes for one in images),
        most_image_bytes=parts_of(request).config.limits.images_bytes,
    )


@router.get("/keys")
def list_keys(request: Request, tenant: Tenant) -> KeyList:
    """List the tenant's keys, without the keys themselves; for the local owner, those of all tenants."""
    found = parts_of(request).store.keys.list(None if tenant.is_local_owner else tenant.tenant_id)
    return KeyList(keys=found)
