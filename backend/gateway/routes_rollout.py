"""What rollout workers outside the service need: episodes, a place to hand them in, and tokens.

The gateway checks whose job or policy it is; the pool that runs it does the rest.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool

from backend.gateway.bodies import JsonObject, Tenant, body_of, describes
from backend.gateway.parts import GatewayParts, parts_of
from backend.gateway.pool_choice import job_and_pool, pools_of_policies
from backend.gateway.pool_proxy import PoolProxy
from backend.store.store import PoolRecord, TenantStore
from tinkergym.errors import ConflictError, InvalidRequestError, ServiceUnavailableError
from tinkergym.wire import (
    JobView,
    LeaseReply,
    LeaseRequest,
    SampleBatch,
    SampleRequest,
    SubmitReply,
    SubmitRequest,
)

router = APIRouter(prefix="/v1")

_PAUSE_SECONDS = 0.5
"""A worker whose job has no pool yet asks again after this."""

_SHORT_WAIT_SECONDS = 1.0
_LONGEST_EMPTY_ANSWER = 4096


@router.post(
    "/jobs/{job_id}/episodes/lease", openapi_extra=describes(LeaseRequest), response_model=LeaseReply
)
async def lease_episodes(
    request: Request,
    tenant: Tenant,
    job_id: str,
    wanted: Annotated[LeaseRequest, Depends(body_of(LeaseRequest))],
) -> Response | LeaseReply:
    """Hand out episodes to play, renew the leases of others, and wait up to `wait_seconds` for some."""
    parts = parts_of(request)
    job, pool = await run_in_threadpool(_job_of_clients, parts, tenant, job_id)
    if job.state.final:
        return LeaseReply(episodes=[], lost=wanted.renew, job_state=job.state)
    if pool is not None:
        return _json(await _lease_from(parts.proxy, pool, job_id, wanted, request.is_disconnected))
    # Nobody runs the job now. Whoever plays goes on playing: the results will be wanted.
    await asyncio.sleep(min(_PAUSE_SECONDS, wanted.wait_seconds))
    return LeaseReply(episodes=[], job_state=job.state)


@router.post(
    "/jobs/{job_id}/episodes/submit", openapi_extra=describes(SubmitRequest), response_model=SubmitReply
)
async def submit_episodes(
    request: Request, tenant: Tenant, job_id: str, handed_in: JsonObject
) -> Response | SubmitReply:
    """Hand in results; the answer comes when they are durable."""
    parts = parts_of(request)
    job, pool = await run_in_threadpool(_job_of_clients, parts, tenant, job_id)
    ids = _episode_ids(handed_in)
    # The pool keeps the episodes of many jobs and trusts us; it alone reads the trajectories.
    foreign = next((episode_id for episode_id in ids if not episode_id.startswith(f"{job_id}:")), None)
    if foreign is not None:
        raise InvalidRequestError(f"{foreign!r} is no episode of job {job_id}", field="results.episode_id")
    if job.state.final:
        return SubmitReply(verdicts=["stale"] * len(ids))
    if pool is None:
        raise ServiceUnavailableError(
            f"job {job_id} is being taken up again", hint="hand the results in again"
        )
    return _json(await parts.proxy.call(pool, "/episodes/submit", await request.body(), {"job_id": job_id}))


@router.post("/sample", openapi_extra=describes(SampleBatch), response_class=StreamingResponse)
async def sample(
    request: Request, tenant: Tenant, batch: Annotated[SampleBatch, Depends(body_of(SampleBatch))]
) -> StreamingResponse:
    """Sample tokens: one JSON line per request, in the order in which they finish."""
    parts = parts_of(request)
    if len({wanted.request_id for wanted in batch.requests}) < len(batch.requests):
        raise InvalidRequestError("two requests have one request_id", field="requests.request_id")
    policies = {wanted.policy for wanted in batch.requests}
    chosen = await run_in_threadpool(pools_of_policies, parts, tenant, policies)
    by_pool: dict[str, list[SampleRequest]] = defaultdict(list)
    for wanted in batch.requests:
        by_pool[chosen[wanted.policy].pool_id].append(_own_session(wanted, tenant.tenant_id))
    pools = {pool.pool_id: pool for pool in chosen.values()}
    stack = AsyncExitStack()
    try:
        # Opened here, so that a pool that refuses is an HTTP error and not a stream that breaks off.
        sources = [
            await stack.enter_async_context(
                parts.proxy.stream(pools[pool_id], "/sample", _batch_json(requests))
            )
            for pool_id, requests in by_pool.items()
        ]
    except BaseException:
        await stack.aclose()
        raise
    return StreamingResponse(_lines(sources, stack), media_type="application/x-ndjson")


def _job_of_clients(
    parts: GatewayParts, tenant: TenantStore, job_id: str
) -> tuple[JobView, PoolRecord | None]:
    job, pool = job_and_pool(parts, tenant, job_id)
    if job.spec.rollout == "server":
        raise ConflictError(
            f"the episodes of job {job_id} are played by the service", hint="submit it with rollout='client'"
        )
    return job, pool


async def _lease_from(
    proxy: PoolProxy,
    pool: PoolRecord,
    job_id: str,
    wanted: LeaseRequest,
    gone: Callable[[], Awaitable[bool]],
) -> bytes:
    """Ask the pool again and again in short waits, while the client is there.

    A long wait at the pool would outlive a client that died, and then take the next episodes to nobody.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wanted.wait_seconds
    while True:
        left = deadline - loop.time()
        asked = wanted.model_copy(update={"wait_seconds": max(0.0, min(left, _SHORT_WAIT_SECONDS))})
        began = loop.time()
        answer = await proxy.call(
            pool, "/episodes/lease", asked.model_dump_json().encode(), {"job_id": job_id}
        )
        came_early = loop.time() - began < asked.wait_seconds / 2  # there was something to say
        if left <= _SHORT_WAIT_SECONDS or came_early or not _is_empty(answer) or await gone():
            return answer


def _is_empty(answer: bytes) -> bool:
    if len(answer) > _LONGEST_EMPTY_ANSWER:
        return False
    reply = from_json(answer)
    return not reply.get("episodes") and not reply.get("lost")


def _episode_ids(handed_in: dict[str, Any]) -> list[str]:
    try:
        return [str(result["episode_id"]) for result in handed_in["results"]]
    except (KeyError, TypeError):
        raise InvalidRequestError("must be a list of episode results", field="results") from None


def _own_session(wanted: SampleRequest, tenant_id: str) -> SampleRequest:
    """Keep the session names of tenants apart: a session is a cache, and what it holds can be timed."""
    if not wanted.session_id:
        return wanted
    return wanted.model_copy(update={"session_id": f"{tenant_id}/{wanted.session_id}"})


def _batch_json(requests: list[SampleRequest]) -> bytes:
    return SampleBatch.model_construct(requests=requests).model_dump_json().encode()


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _lines(sources: list[AsyncIterator[bytes]], stack: AsyncExitStack) -> AsyncIterator[bytes]:
    async with stack:
        if len(sources) == 1:
            async for chunk in sources[0]:
                yield chunk
            return
        async for chunk in _merged(sources):
            yield chunk


async def _merged(sources: list[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """Interleave streams of lines, never cutting one in two."""
    arrived: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)

    async def pump(source: AsyncIterator[bytes]) -> None:
        rest = b""
        async for chunk in source:
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                await arrived.put(whole + newline)
        if rest:
            await arrived.put(rest + b"\n")
        await arrived.put(None)

    async with asyncio.TaskGroup() as group:
        for source in sources:
            group.create_task(pump(source))
        for _ in sources:
            while (lines := await arrived.get()) is not None:
                yield lines
