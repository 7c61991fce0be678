"""The service itself: its health, and the models it offers."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from backend.admission.offered_models import require_offered
from backend.gateway.dependencies import Tenant, body_of, describes, key_of
from backend.gateway.fair_threads import TOO_LONG, FairRoute, FairThreads, in_turn
from backend.gateway.shown_views import disk_trouble, shown_to
from backend.gateway.slot_queue import SlotQueue
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.place import database_file
from backend.store.service_parts import (
    CLUSTER,
    NODES,
    engines_part,
    late_engines,
    lost_pools,
    pool_part,
    without_model,
)
from backend.store.store import PoolRecord, TenantStore
from tinkergym import __version__
from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.registration.packs import find_packs
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.model import WireModel
from tinkergym.schema.queue import MOST_QUEUED, QueueView
from tinkergym.schema.views import (
    EngineHostView,
    EnvironmentView,
    HealthView,
    ModelView,
    RendererBundle,
    WantedRenderer,
)

router = APIRouter(prefix="/v1", route_class=FairRoute)

_SCHEDULER_SECONDS = 15.0
"""Seconds without a heartbeat, which a scheduler without jobs sends every five, and others every second."""
_CLUSTER_SECONDS = 5.0
"""The scheduler records every two seconds or so that the cluster does not answer."""


class ModelList(WireModel):
    """The named models of the service."""

    models: list[ModelView] = Field(max_length=10_000)


class EnvironmentList(WireModel):
    """The environments that the service can play."""

    environments: list[EnvironmentView]


@router.get("/health")
async def health(request: Request, sample: bool = True) -> HealthView:
    """Return whether the service responds, and what it is waiting for. Needs no key.

    A loaded model counts once a token was sampled from it, at most a few seconds ago; with `sample=false` as
    it was when somebody last asked. A model whose engine sleeps is not woken: it is in `resting`, and counts
    while its worker answers.

    With the local owner's key it also returns each loaded model's memory.
    """
    # In its own threads: a response must not wait for requests that keep all others busy.
    threads: FairThreads = request.app.state.health_threads
    parts = parts_of(request)
    try:
        if sample:
            await parts.pool_proofs.ask(await threads.run("", partial(_pools, parts)))
        return await threads.run("", partial(_health, parts, key_of(request)))
    except ServiceUnavailableError as error:
        if error.code != TOO_LONG:
            raise
        # Of what it reads, only the database, or the disk with its file, can take so long.
        hangs = "database" if database_file(parts.config.store_url) is None else "disk"
        return HealthView(status="degraded", version=__version__, waiting_for=[hangs])


def _pools(parts: GatewayParts) -> list[PoolRecord]:
    with suppress(TinkerGymError):  # The database is missing, which `_missing` says.
        return parts.store.service().pools(parts.clock(), max_age=parts.config.lease_seconds)
    return []


@router.get("/models")
def list_models(request: Request, tenant: Tenant) -> ModelList:
    """List the models that jobs can name."""
    shown = shown_to(request, tenant)
    return ModelList(models=[shown.model(view) for view in parts_of(request).catalog.listed()])


@router.get("/queue")
def show_queue(request: Request, tenant: Tenant) -> QueueView:
    """Return who has the models' slots, and which jobs wait for one, why, and in which place."""
    parts = parts_of(request)
    found = parts.queue.get(partial(_queue, parts))
    is_owner = tenant.is_local_owner
    view = found.seen_by(tenant.tenant_id, is_owner=is_owner, offered=parts.config.models)
    return shown_to(request, tenant).queue(view)


def _queue(parts: GatewayParts) -> SlotQueue:
    service, config, now = parts.store.service(), parts.config, parts.clock()
    return SlotQueue(
        # Before the jobs with a slot: one that gets it between the two waits a moment longer.
        waiting=service.queued_jobs(limit=MOST_QUEUED),
        held=service.held_jobs(),
        pools={one.pool_id: one.model for one in service.pools(now, max_age=config.lease_seconds)},
        slots_per_pool=config.jobs_per_pool,
        most_of_one=config.most_jobs_of_one(service.tenants),
    )


@router.get("/environments")
async def list_environments(request: Request, tenant: Tenant) -> EnvironmentList:
    """List the environments of packs installed with the service, which its workers play."""
    if parts_of(request).config.env_workers == 0:
        return EnvironmentList(environments=[])
    # Reading the metadata of all packages takes about 0.1 s.
    threads: FairThreads = request.app.state.catalog_reads
    packs = await threads.run(tenant.tenant_id, find_packs)
    # Their ids are in entry points, so no pack is imported.
    found = [
        EnvironmentView(id=environment_id, distribution=pack.distribution, version=pack.version)
        for pack in packs
        for environment_id in pack.environment_ids
    ]
    return EnvironmentList(environments=found)


@router.get("/renderer")
async def renderer(request: Request, tenant: Tenant, model: str) -> RendererBundle:
    """Return what turns messages into a model's token ids, and back, under the model's own name.

    For the id of a job, the renderer of its episodes.
    """
    if not PolicyRef.is_meant(model):
        return await _renderer(request, tenant, model, "")
    ref = PolicyRef.parse(model, field="model")
    spec = (await in_turn(tenant.tenant_id, tenant.get_job, ref.owner)).spec.for_agent(ref.agent)
    bundle = await _renderer(request, tenant, spec.model, spec.chat_template)
    return bundle.with_settings(spec.template_variables, spec.template_date)


@router.post("/renderer", openapi_extra=describes(WantedRenderer))
async def renderer_with_template(
    request: Request, tenant: Tenant, wanted: Annotated[WantedRenderer, Depends(body_of(WantedRenderer))]
) -> RendererBundle:
    """Return a model's renderer with another chat template."""
    return await _renderer(request, tenant, wanted.model, wanted.chat_template)


async def _renderer(request: Request, tenant: TenantStore, model: str, template: str) -> RendererBundle:
    require_offered(parts_of(request).config, tenant, model)
    catalog = parts_of(request).catalog
    # A new model is checked for a second or more. Not in the threads of job checks, which take many.
    threads: FairThreads = request.app.state.catalog_reads
    return await threads.run(
        tenant.tenant_id,
        lambda: catalog.renderer(catalog.known_as(model), template),
        abandon_on_cancel=True,
    )


def missing_now(parts: GatewayParts) -> dict[str, float]:
    """Return which parts of the service are missing, and since when."""
    return parts.missing.update(_missing(parts, parts.pool_proofs.failing), parts.clock())


def _health(parts: GatewayParts, key: str) -> HealthView:
    missing = missing_now(parts)
    owner, memory, hosts, resting = False, dict[str, int](), list[EngineHostView](), list[str]()
    with suppress(TinkerGymError):  # The missing part is the database.
        tenant_id = parts.store.keys.tenant_of(key) if key else None
        owner = tenant_id is not None and parts.store.tenant(tenant_id).is_local_owner
        pools = _pools(parts)
        resting = _resting(parts, pools)
        if owner:
            memory = {pool.model: pool.memory_bytes for pool in pools if pool.memory_bytes}
            hosts = _engine_hosts(parts)
    if not owner:
        # A loaded model may be a folder of the owner, whose name is private.
        missing = _named(
            missing, {f(model) for f in (pool_part, engines_part) for model in parts.config.models}
        )
    return HealthView(
        status="degraded" if missing else "ok",
        version=__version__,
        waiting_for=list(missing),
        missing_since=missing,
        resting=[model for model in resting if owner or model in parts.config.models],
        memory=memory,
        engine_hosts=hosts,
        operator_key=parts.operator_key.public,
    )


def _resting(parts: GatewayParts, pools: list[PoolRecord]) -> list[str]:
    """Return the models that no pool has sampled, but one would."""
    resting, failing = parts.pool_proofs.resting, parts.pool_proofs.failing
    proven = {pool.model for pool in pools if pool.url not in resting | failing}
    return sorted({pool.model for pool in pools if pool.url in resting} - proven)


def _engine_hosts(parts: GatewayParts) -> list[EngineHostView]:
    now = parts.clock()
    return [
        EngineHostView(
            engine_id=one.engine_id,
            model=one.model,
            node=one.node,
            memory_bytes=one.memory_bytes,
            silent_seconds=max(0.0, now - one.seen_at),
        )
        for one in parts.store.service().engine_hosts()
    ]


def _named(missing: dict[str, float], offered: set[str]) -> dict[str, float]:
    """Return missing parts without the names of models that the service does not list."""
    shown: dict[str, float] = {}
    for name, since in missing.items():
        known_as = name if name in offered else without_model(name)
        shown[known_as] = min(since, shown.get(known_as, since))
    return shown


def _missing(parts: GatewayParts, failing: Collection[str]) -> list[str]:
    now, most = parts.clock(), parts.config.lease_seconds
    if disk_trouble(parts.config):
        return ["disk"]  # All parts that cannot record their heartbeats seem silent.
    service = parts.store.service()
    try:
        seen = service.parts(now)
        known = service.pools(now, max_age=inf)
        heard = service.pools(now, max_age=most)
    except TinkerGymError:
        return ["database"]
    age = seen.get("scheduler")
    silent = age is None or age > min(_SCHEDULER_SECONDS, most)
    alive = {pool.model for pool in heard if pool.url not in failing}
    cluster = seen.get(CLUSTER, _CLUSTER_SECONDS) < _CLUSTER_SECONDS
    # Those that the scheduler lost and replaces, and those that are silent, which it has not seen yet.
    lost = sorted(lost_pools(seen) | {pool.model for pool in known})
    wanted = dict.fromkeys([*parts.config.preload, *lost])
    parts_below = ["scheduler"] * silent + [CLUSTER] * cluster + [NODES] * (NODES in seen)
    return (
        parts_below
        + [pool_part(model) for model in wanted if model not in alive]
        + sorted(late_engines(seen))
    )
