"""Sampling: each request goes to the pool of its model, and the responses come back interleaved.

The gateway checks who owns the policies and never parses a completion.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from backend.admission.request_bounds import refuse_too_many_logprobs
from backend.fairness.fair_places import Hold
from backend.gateway.dependencies import Tenant, body_of, describes, key_of
from backend.gateway.fair_routes import FairRoute, in_turn, read_now
from backend.gateway.pool_choice import pools_at_hand, want_pool
from backend.gateway.wiring import GatewayParts, parts_of
from backend.lines_response import LinesResponse
from tinkergym.errors import InvalidRequestError, TooManyRequestsError
from tinkergym.schema.ids import SeatRef
from tinkergym.schema.sampling import SampleBatch, SampleRequest

router = APIRouter(prefix="/v1", route_class=FairRoute)


@router.post("/sample", openapi_extra=describes(SampleBatch), response_class=StreamingResponse)
async def sample(
    request: Request, tenant: Tenant, batch: Annotated[SampleBatch, Depends(body_of(SampleBatch))]
) -> LinesResponse:
    """Sample tokens: one JSON line per request, in order of completion."""
    parts = parts_of(request)
    if len({wanted.request_id for wanted in batch.requests}) < len(batch.requests):
        raise InvalidRequestError("two requests have one request_id", field="requests.request_id")
    refuse_too_many_logprobs(batch.requests)
    policies = {wanted.policy for wanted in batch.requests}
    chosen = await read_now(tenant.tenant_id, pools_at_hand, parts, tenant, policies)
    missing = next((policy for policy in policies if policy not in chosen), None)
    if missing is not None:
        raise await in_turn(tenant.tenant_id, want_pool, parts, tenant, missing)
    by_pool: dict[str, list[SampleRequest]] = defaultdict(list)
    for wanted in batch.requests:
        by_pool[chosen[wanted.policy].pool_id].append(wanted)
    bodies = {
        pool_id: _batch_json(_in_own_sessions(requests, tenant.tenant_id), batch.together)
        for pool_id, requests in by_pool.items()
    }
    # The parsed body is many times as large as the raw one, and sampling may take minutes.
    by_pool.clear()
    count = len(batch.requests)
    batch.requests.clear()
    pools = {pool.pool_id: pool for pool in chosen.values()}
    stack = AsyncExitStack()
    try:
        flying = stack.enter_context(_in_flight(parts, tenant.tenant_id, count))
        # Opened here, so that a refusal by a pool is an HTTP error and not a broken stream.
        sources = []
        for pool_id, body in bodies.items():
            source = await stack.enter_async_context(parts.proxy.stream(pools[pool_id], "/sample", body))
            # The response breaks off, and the client gets the reason when it requests the rest.
            stack.enter_context(parts.key_watch.watched(key_of(request), source.break_off))
            sources.append(source.chunks)
    except BaseException:
        await stack.aclose()
        raise
    return LinesResponse(_lines(sources, flying), count, stack)


def _in_flight(parts: GatewayParts, tenant_id: str, count: int) -> Hold:
    """Count requests until they are answered.

    Raises:
        TooManyRequestsError: The tenant has too many in flight already.
    """
    hold = Hold(parts.in_flight, tenant_id)
    if not hold.take(count):
        raise TooManyRequestsError(
            f"{parts.in_flight.held(tenant_id)} of your sampling requests are in flight, and the service "
            f"allows {parts.in_flight.most_of_one} at a time",
            hint="send more when some have finished; the operator can raise limits.samples_in_flight",
        )
    return hold


def _in_own_sessions(requests: list[SampleRequest], tenant_id: str) -> list[SampleRequest]:
    """Prefix the sessions with the tenant, even an empty one: the engine shares caches only within an owner.

    Timing could reveal the contents of a shared cache, such as another tenant's prompt to the same model.
    """
    owned = SeatRef.prefix_of(tenant_id)
    return [one.model_copy(update={"session_id": owned + one.session_id}) for one in requests]


def _batch_json(requests: list[SampleRequest], together: bool) -> bytes:
    return SampleBatch.model_construct(requests=requests, together=together).model_dump_json().encode()


async def _lines(sources: list[AsyncIterator[bytes]], flying: Hold) -> AsyncGenerator[bytes, None]:
    async for chunk in sources[0] if len(sources) == 1 else _merged(sources):
        flying.give(chunk.count(b"\n"))
        yield chunk


async def _merged(sources: list[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """Interleave streams of lines without splitting a line."""
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
