"""Episodes for rollout workers outside the service: leases and results.

The gateway checks whose job it is; the pool that runs the job does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import from_json

from backend.gateway.dependencies import Body, Tenant, aside, body_of, describes, refuse_many_values
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.pool_choice import job_and_pool
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.store import PoolRecord, TenantStore
from tinkergym.errors import ConflictError, InvalidRequestError, ServiceUnavailableError
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import EpisodeId
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.model import MOST_RESULTS
from tinkergym.schema.parsing import parse_json

router = APIRouter(prefix="/v1", route_class=FairRoute)

_PAUSE_SECONDS = 0.5
"""A worker whose job has no pool yet retries after this."""

_SHORT_WAIT_SECONDS = 1.0
_LONGEST_EMPTY_ANSWER = 4096
"""In bytes. A longer answer has episodes, and need not be parsed to find out."""


@router.post(
    "/jobs/{job_id}/episodes/lease", openapi_extra=describes(LeaseRequest), response_model=LeaseReply
)
async def lease_episodes(
    request: Request,
    tenant: Tenant,
    job_id: str,
    wanted: Annotated[LeaseRequest, Depends(body_of(LeaseRequest))],
) -> Response | LeaseReply:
    """Lease episodes, renew other leases, and wait up to `wait_seconds` for episodes."""
    parts = parts_of(request)
    job, pool = await in_turn(tenant.tenant_id, _job_of_clients, parts, tenant, job_id)
    if job.state.final:
        return LeaseReply(episodes=[], lost=wanted.renew, job_state=job.state)
    if pool is not None:
        return _json(await _lease_from(parts, pool, job_id, wanted, request.is_disconnected))
    if job.state is JobState.WAITING_FOR_CLIENT and not wanted.leaving:
        await in_turn(tenant.tenant_id, parts.store.service().client_came, job_id)
    # No pool runs the job now. Workers continue to play, because the results will be needed.
    await asyncio.sleep(min(_PAUSE_SECONDS, wanted.wait_seconds))
    waits_for = job.reason if job.state in (JobState.QUEUED, JobState.PAUSED) else ""
    return LeaseReply(episodes=[], job_state=job.state, waits_for=waits_for)


@router.post(
    "/jobs/{job_id}/episodes/submit", openapi_extra=describes(SubmitRequest), response_model=SubmitReply
)
async def submit_episodes(
    request: Request, tenant: Tenant, job_id: str, body: Body
) -> Response | SubmitReply:
    """Submit results; the response is sent when they are durable."""
    parts = parts_of(request)
    job, pool = await in_turn(tenant.tenant_id, _job_of_clients, parts, tenant, job_id)
    ids = await aside(request, lambda: _episode_ids(request, body), body)
    # The pool has the episodes of many jobs and trusts us; only it parses the trajectories.
    foreign = next((episode_id for episode_id in ids if not _is_of(job_id, episode_id)), None)
    if foreign is not None:
        raise InvalidRequestError(f"{foreign!r} is not an episode of {job_id}", field="results.episode_id")
    if job.state.final:
        return SubmitReply(verdicts=["stale"] * len(ids))
    if job.state is JobState.PAUSED:
        # They would have to be kept for the whole pause; they are played again.
        return SubmitReply(verdicts=["stale"] * len(ids))
    if pool is None:
        raise ServiceUnavailableError(f"{job_id} is being resumed", hint="hand the results in again")
    return _json(await parts.proxy.call(pool, "/episodes/submit", body, {"job_id": job_id}))


def _is_of(job_id: str, episode_id: str) -> bool:
    found = EpisodeId.find(episode_id)
    return found is not None and found.job.job_id == job_id


def _job_of_clients(
    parts: GatewayParts, tenant: TenantStore, job_id: str
) -> tuple[JobView, PoolRecord | None]:
    job, pool = job_and_pool(parts, tenant, job_id)
    if not job.spec.played and job.spec.played_by != "client":
        raise ConflictError(f"{job_id} trains on a dataset and does not play episodes")
    if job.spec.played_by == "server":
        raise ConflictError(
            f"the episodes of {job_id} are played by the service", hint="submit it with rollout='client'"
        )
    return job, pool


async def _lease_from(
    parts: GatewayParts,
    pool: PoolRecord,
    job_id: str,
    wanted: LeaseRequest,
    gone: Callable[[], Awaitable[bool]],
) -> bytes:
    """Ask the pool repeatedly with short waits, while the client is connected.

    A long wait at the pool would outlive a client that died, and the next episodes would be lost until their
    leases expire.
    """
    loop, turns = asyncio.get_running_loop(), parts.waiting_at_pools
    deadline = loop.time() + wanted.wait_seconds
    waits = wanted.wait_seconds > 0 and wanted.max_episodes > 0
    # Leases must be renewed in time and open episodes issued at once, however many clients wait.
    at_once = waits and turns.is_full(job_id)
    while True:
        # A request that only renews does not wait, nor delay others.
        async with turns.taken(job_id) if waits and not at_once else nullcontext():
            began = loop.time()
            left = deadline - began
            seconds = 0.0 if at_once else max(0.0, min(left, _SHORT_WAIT_SECONDS))
            body = wanted.model_copy(update={"wait_seconds": seconds}).model_dump_json().encode()
            answer = await parts.proxy.call(pool, "/episodes/lease", body, {"job_id": job_id})
        if await gone():
            # Its process or its network failed: others need not wait until its leases expire.
            body = wanted.model_dump_json().encode()
            await parts.proxy.call(pool, "/episodes/vanished", body, {"job_id": job_id})
            return answer
        came_early = loop.time() - began < seconds / 2  # There was something to report.
        over = left <= _SHORT_WAIT_SECONDS and not at_once
        if over or came_early or not _is_empty(answer):
            return answer
        at_once = False


def _is_empty(answer: bytes) -> bool:
    if len(answer) > _LONGEST_EMPTY_ANSWER:
        return False
    reply = from_json(answer)
    return not reply.get("episodes") and not reply.get("lost")


class _Result(BaseModel):
    episode_id: str


class _HandedIn(BaseModel):
    """Whose episodes a `SubmitRequest` contains; other fields are ignored."""

    results: list[_Result] = Field(max_length=MOST_RESULTS)


def _episode_ids(request: Request, body: bytearray) -> list[str]:
    refuse_many_values(request, body)
    return [result.episode_id for result in parse_json(_HandedIn, body).results]


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
