"""`GET /openai/v1/models`: the models and policies that requests can name."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request

from backend.gateway.dependencies import Tenant
from backend.gateway.fair_threads import FairRoute
from backend.gateway.wiring import GatewayParts, parts_of
from backend.openai_api.served_policies import ServedPolicy, with_policy
from backend.store.store import TenantStore
from tinkergym.openai_api.chat_answer import ServedModel, ServedModels
from tinkergym.schema.served_names import ServedName

router = APIRouter(prefix="/openai/v1", route_class=FairRoute)

_OWNER = "tinkergym"
_MOST_JOBS = 100
"""The newest ones are listed; requests can also name the others."""


@router.get("/models")
def list_served(request: Request, tenant: Tenant) -> ServedModels:
    """List your names, the models, and the policies of your newest jobs."""
    parts = parts_of(request)
    names = _names(parts, tenant, tenant.names.all().values())
    return ServedModels(data=[*names, *_models(parts), *_policies(parts, tenant)])


@router.get("/models/{name:path}")
async def show_served(request: Request, tenant: Tenant, name: str) -> ServedModel:
    """Return a model, or one of your policies, by any name that a request may have."""
    parts = parts_of(request)

    def shown(served: ServedPolicy) -> ServedModel:
        length = served.renderer.context_length
        whole = ServedModel(id=name, created=0, owned_by=_OWNER, max_model_len=length)
        return _named(parts, tenant, name) or whole

    return await with_policy(request, tenant, name, shown)


def _named(parts: GatewayParts, tenant: TenantStore, name: str) -> ServedModel | None:
    one = tenant.names.all().get(name)
    return None if one is None else _names(parts, tenant, [one])[0]


def _names(parts: GatewayParts, tenant: TenantStore, names: Iterable[ServedName]) -> list[ServedModel]:
    lengths = _lengths(parts)
    return [
        ServedModel(
            id=one.name,
            created=int(one.changed_at),
            owned_by=tenant.tenant_id,
            max_model_len=lengths.get(tenant.get_job(ref.owner).spec.for_agent(ref.agent).model, 0),
            description=one.words,
        )
        for one in names
        for ref in one.versions[:1]
    ]


def _lengths(parts: GatewayParts) -> dict[str, int]:
    return {view.name: view.context_length for view in parts.catalog.listed()}


def _models(parts: GatewayParts) -> list[ServedModel]:
    return [
        ServedModel(id=view.name, created=0, owned_by=_OWNER, max_model_len=view.context_length)
        for view in parts.catalog.listed()
        if view.context_length
    ]


def _policies(parts: GatewayParts, tenant: TenantStore) -> list[ServedModel]:
    lengths = _lengths(parts)
    return [
        ServedModel(
            id=str(ref),
            created=int(created_at),
            owned_by=tenant.tenant_id,
            max_model_len=lengths.get(model, 0),
        )
        for ref, model, created_at in tenant.newest_policies(_MOST_JOBS)
    ]
