"""Which pool handles a request: the one that runs the job, else any with the model, else a new one."""

from __future__ import annotations

from collections.abc import Iterable

from backend.admission.offered_models import may_name
from backend.gateway.wiring import GatewayParts
from backend.store.store import PoolRecord, TenantStore
from tinkergym.errors import (
    NotFoundError,
    ServiceUnavailableError,
    TinkerGymError,
    UnknownModelError,
    from_wire,
)
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.view import JobView


def job_and_pool(parts: GatewayParts, tenant: TenantStore, job_id: str) -> tuple[JobView, PoolRecord | None]:
    """Return a job and the pool that runs it at the moment, if any.

    Raises:
        NotFoundError: It is not a job of this tenant.
    """
    job, worker_id = tenant.get_job_and_worker(job_id)
    pools = parts.store.service().pools(parts.clock(), max_age=parts.config.lease_seconds)
    return job, next((pool for pool in pools if pool.pool_id == worker_id), None)


def pools_at_hand(parts: GatewayParts, tenant: TenantStore, policies: Iterable[str]) -> dict[str, PoolRecord]:
    """Return for each policy (a job of this tenant, or a model's name) the pool that can sample it, if any.

    Only reads, mostly from a cache, so that `read_now` may call it.

    Raises:
        NotFoundError: One is neither a job of this tenant nor a model of the service.
    """
    pools = parts.store.service().pools(parts.clock(), max_age=parts.config.lease_seconds)
    chosen = {}
    for policy in policies:
        model, worker_id = _whose(parts, tenant, policy)
        # The pool that runs a job serves all its policies, including those with another base model.
        able = [pool for pool in pools if pool.pool_id == worker_id]
        able += [pool for pool in pools if pool.model == model]
        if able:
            chosen[policy] = able[0]
    return chosen


def want_pool(parts: GatewayParts, tenant: TenantStore, policy: str) -> TinkerGymError:
    """Request a pool for a policy; returns the error for the client: to wait, or why it is impossible.

    Raises:
        NotFoundError: It is neither a job of this tenant nor a model.
    """
    model, _ = _whose(parts, tenant, policy)
    if tenant.model_and_worker(policy) is None and policy not in parts.config.models:
        try:
            parts.catalog.renderer(model)
        except UnknownModelError:
            raise _unknown(policy) from None
    parts.store.service().want_pool(model, parts.clock())
    refused = parts.refusals().get(model)
    if refused is not None:  # A pool was started a moment ago and could not serve.
        return from_wire(refused.model_dump())
    return ServiceUnavailableError(
        f"the model {model!r} is not loaded; a worker is being started", hint="try again in a moment"
    )


def _whose(parts: GatewayParts, tenant: TenantStore, policy: str) -> tuple[str, str | None]:
    job = tenant.model_and_worker(policy)
    if job is not None:
        return job
    # Like a job's model, it may be a folder or a hub id; `want_pool` checks that, off the event loop.
    if may_name(parts.config, tenant, policy) and not PolicyRef.is_meant(policy):
        return policy, None
    raise _unknown(policy)


def _unknown(policy: str) -> NotFoundError:
    return NotFoundError(
        f"{policy!r} is neither one of your jobs nor a model of this service",
        hint="`tinkergym jobs` lists your jobs, GET /v1/models the models",
        field="policy",
    )
