"""Calls of policies that users train with their own loops.

A call is stored before it is acknowledged; the pool that has the policy executes it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from backend.admission.request_bounds import refuse_many_images
from backend.gateway.dependencies import NumberPath, Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.pool_choice import job_and_pool
from backend.gateway.shown_views import shown_to
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.images import Images
from backend.store.store import PoolRecord, TenantStore
from tinkergym.errors import ConflictError, ServiceUnavailableError
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef, is_policy_id
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.policy_calls import (
    CallResult,
    CallView,
    Load,
    NumberedCall,
    PolicyCallsView,
    images_in,
    most_images_in,
)
from tinkergym.schema.views import PolicyView

router = APIRouter(prefix="/v1/policies", route_class=FairRoute)

_LONGEST_WAIT_SECONDS = 30.0
_SHORT_WAIT_SECONDS = 5.0
"""A request waits at a pool for this long, then checks whether the pool still has the policy."""
_PAUSE_SECONDS = 0.2
"""How often the result is polled while no pool has the policy."""


@router.get("")
def find_policy(tenant: Tenant, reference: Annotated[str, Query(max_length=200)]) -> PolicyView:
    """Resolve a reference such as `job-...@step:40` to its policy, its version, and the stored versions."""
    ref = PolicyRef.parse(reference, field="reference")
    found = tenant.find_policy(ref, field="reference")
    return PolicyView(
        policy_id=found.policy.policy_id,
        job_id=found.job_id,
        agent=found.agent,
        model=found.policy.model,
        adapter=found.policy.adapter,
        version=None if ref.is_newest else found.version(field="reference"),
        kept=[view.policy_version for view in found.kept],
    )


@router.get("/{policy_id}/calls")
def list_calls(request: Request, tenant: Tenant, policy_id: str) -> PolicyCallsView:
    """Return the last call of a policy, so that another script can continue."""
    parts = parts_of(request)
    job, _ = _policy(parts, tenant, policy_id)
    return PolicyCallsView(policy_id=job.job_id, last_seq=parts.store.policy_calls().last(job.job_id))


@router.post("/{policy_id}/calls", openapi_extra=describes(NumberedCall))
async def call_policy(
    request: Request,
    tenant: Tenant,
    policy_id: str,
    wanted: Annotated[NumberedCall, Depends(body_of(NumberedCall))],
) -> CallView:
    """Store a call. The response is sent when it is durable; `GET` returns the result."""
    parts = parts_of(request)
    job, pool = await in_turn(tenant.tenant_id, _stored, parts, tenant, policy_id, wanted)
    if pool is not None:
        await _ring(parts, pool, job.job_id, wanted.seq, 0.0)
    return CallView(seq=wanted.seq, done=False, state=job.state, reason=job.reason)


@router.get("/{policy_id}/calls/{seq}")
async def show_call(
    request: Request,
    tenant: Tenant,
    policy_id: str,
    seq: NumberPath,
    wait_seconds: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_SECONDS)] = 0.0,
) -> CallView:
    """Return the result of a call; waits for it, and reports what the policy waits for."""
    parts = parts_of(request)
    deadline = time.monotonic() + wait_seconds
    while True:
        job, pool, result = await in_turn(tenant.tenant_id, _result, parts, tenant, policy_id, seq)
        left = deadline - time.monotonic()
        if result is not None or job.state.final or left <= 0:
            view = shown_to(request, tenant).job(job)
            return CallView(
                seq=seq, done=result is not None, result=result, state=view.state, reason=view.reason
            )
        if job.state is JobState.WAITING_FOR_CLIENT:
            # It was parked between the call and now.
            await in_turn(tenant.tenant_id, parts.store.service().client_came, job.job_id)
        if pool is None or not await _wait_at(parts, pool, job.job_id, seq, deadline):
            await asyncio.sleep(min(_PAUSE_SECONDS, left))


def _stored(
    parts: GatewayParts, tenant: TenantStore, policy_id: str, wanted: NumberedCall
) -> tuple[JobView, PoolRecord | None]:
    """Check and store a call; return its policy's job and the pool that has it."""
    job, pool = _policy(parts, tenant, policy_id)
    if job.state.final:
        raise ConflictError(
            f"{policy_id} has ended ({job.state})", hint="create another policy from its last version"
        )
    if isinstance(wanted.call, Load):
        # Another tenant's policy is treated like one that does not exist.
        tenant.find_policy(PolicyRef.parse(wanted.call.policy))
    if images := images_in(wanted.call):
        most = parts.config.limits.prompt_images
        refuse_many_images(most_images_in(wanted.call), most, field="call.sequences.images")
        Images(parts.config.images, tenant.images).require(images)
    most_bytes = parts.config.limits.calls_bytes
    parts.store.policy_calls().add(job.job_id, wanted.seq, wanted.call, most_bytes=most_bytes)
    if pool is None and job.state is JobState.WAITING_FOR_CLIENT:
        parts.store.service().client_came(job.job_id)
    return job, pool


def _result(
    parts: GatewayParts, tenant: TenantStore, policy_id: str, seq: int
) -> tuple[JobView, PoolRecord | None, CallResult | None]:
    """Return a policy's job, the pool that has it, and the result of a call, if it is done."""
    job, pool = _policy(parts, tenant, policy_id)
    return job, pool, parts.store.policy_calls().result(job.job_id, seq)


def _policy(parts: GatewayParts, tenant: TenantStore, policy_id: str) -> tuple[JobView, PoolRecord | None]:
    if is_policy_id(policy_id):
        # Also a policy's own id names it, as in references.
        policy_id = tenant.find_policy(PolicyRef(owner=policy_id), field="policy_id").job_id
    job, pool = job_and_pool(parts, tenant, policy_id)
    if not job.spec.by_calls:
        raise ConflictError(
            f"{policy_id} is trained by a job of kind {job.spec.kind!r}, which does not accept calls",
            hint="create your own policy, for example from a version of that job (initial_policy)",
        )
    return job, pool


async def _wait_at(parts: GatewayParts, pool: PoolRecord, job_id: str, seq: int, deadline: float) -> bool:
    """Wait at the pool until a call is done, for some seconds; False if the pool does not respond.

    Each waiting request occupies a thread of the pool, so only some of a policy's may wait there at once.
    """
    turns = parts.waiting_at_pools
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            turn = await turns.enter(job_id)
    except TimeoutError:
        return True
    try:
        left = deadline - time.monotonic()
        return await _ring(parts, pool, job_id, seq, max(0.0, min(left, _SHORT_WAIT_SECONDS)))
    finally:
        turns.leave(turn)


async def _ring(parts: GatewayParts, pool: PoolRecord, job_id: str, seq: int, seconds: float) -> bool:
    """Notify the pool of a call, and wait until it is done; False if the pool does not respond."""
    asked = {"job_id": job_id, "seq": str(seq), "seconds": str(seconds)}
    try:
        await parts.proxy.call(pool, "/policies/wait", b"", asked)
    except ServiceUnavailableError:
        return False
    return True
