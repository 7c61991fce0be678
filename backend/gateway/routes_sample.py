"""Sampling: each request goes to the pool of its model, and the responses come back interleaved.

The gateway checks who owns the policies and never parses a completion.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from backend.admission.request_bounds import refuse_too_many_logprobs
from backend.gateway.dependencies import Tenant, body_of, describes, key_of
from backend.gateway.fair_threads import FairRoute, in_turn, read_now
from backend.gateway.pool_choice import pools_at_hand, want_pool
from backend.gateway.wiring import parts_of
from backend.lines_response import LinesResponse, whole_lines
from backend.store.key_rates import KeyRate
from backend.store.store import TenantStore
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.ids import SeatRef
from tinkergym.schema.sampling import BEYOND_RATE, SampleBatch, SampleRequest

router = APIRouter(prefix="/v1", route_class=FairRoute)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Requests that pools are answering."""

    lines: AsyncGenerator[bytes, None]
    """Chunks: one line per request, in order of completion, and before it the parts of one with `stream`."""
    count: float
    """The number of lines; infinity if it is not known."""
    held: AsyncExitStack
    """Exited at the end; before the last line it ends the pools' work."""


@router.post("/sample", openapi_extra=describes(SampleBatch), response_class=StreamingResponse)
async def sample(
    request: Request, tenant: Tenant, batch: Annotated[SampleBatch, Depends(body_of(SampleBatch))]
) -> LinesResponse:
    """Sample tokens: one JSON line per request, in order of completion."""
    sampling = await begin_sampling(request, tenant, batch.requests, together=batch.together)
    return LinesResponse(sampling.lines, sampling.count, sampling.held)


async def begin_sampling(
    request: Request, tenant: TenantStore, requests: list[SampleRequest], *, together: bool = False
) -> Sampling:
    """Send requests to the pools of their policies; `requests` is empty afterwards.

    Opened here, so that a refusal by a pool is an HTTP error and not a broken stream.

    Raises:
        InvalidRequestError: Two have one id, they want too many logprobs, or more tokens than the key gets.
        NotFoundError: A policy is neither a job of this tenant nor a model.
        TooManyRequestsError: The tenant has too many requests in flight at a pool, or the key has used up its
            rate.
        ServiceUnavailableError: The model is not loaded yet; a pool has been requested.
    """
    parts = parts_of(request)
    if len({wanted.request_id for wanted in requests}) < len(requests):
        raise InvalidRequestError("two requests have one request_id", field="requests.request_id")
    refuse_too_many_logprobs(requests)
    policies = {wanted.policy for wanted in requests}
    chosen = await read_now(tenant.tenant_id, pools_at_hand, parts, tenant, policies)
    missing = next((policy for policy in policies if policy not in chosen), None)
    if missing is not None:
        raise await in_turn(tenant.tenant_id, want_pool, parts, tenant, missing)
    rate: KeyRate | None = request.state.rate
    most_tokens = sum(wanted.max_tokens for wanted in requests)
    if rate is not None:
        await _admit(request, rate, requests, most_tokens)
    stack = AsyncExitStack()
    # Nothing is awaited since the admission, so no other request passes before the reservation.
    reservation = stack.enter_context(parts.rates.reserved(rate, most_tokens)) if rate else None
    by_pool: dict[str, list[SampleRequest]] = defaultdict(list)
    for wanted in requests:
        by_pool[chosen[wanted.policy].pool_id].append(wanted)
    bodies = {
        pool_id: _batch_json(_in_own_sessions(some, tenant.tenant_id), together)
        for pool_id, some in by_pool.items()
    }
    # The parsed body is many times as large as the raw one, and sampling may take minutes.
    by_pool.clear()
    count, streams = len(requests), any(wanted.stream for wanted in requests)
    requests.clear()
    pools = {pool.pool_id: pool for pool in chosen.values()}
    try:
        sources = []
        for pool_id, body in bodies.items():
            source = await stack.enter_async_context(parts.proxy.stream(pools[pool_id], "/sample", body))
            # The response breaks off, and the client gets the reason when it requests the rest.
            stack.enter_context(parts.key_watch.watched(key_of(request), source.break_off))
            sources.append(source.chunks)
    except BaseException:
        await stack.aclose()
        raise
    lines = _lines(sources, streams=streams)
    if rate and reservation:
        lines = parts.rates.counted(rate, lines, reservation, tenant.tenant_id)
    return Sampling(lines, inf if streams else count, stack)


async def _admit(request: Request, rate: KeyRate, requests: list[SampleRequest], most_tokens: int) -> None:
    """Count a request and its prompts, once: it is tried again while its model is being loaded.

    Raises:
        TooManyRequestsError: The key has used up its rate.
        InvalidRequestError: Several samples would take more than the key can owe.
    """
    per_minute = rate.tokens_per_minute
    if per_minute and len(requests) > 1 and most_tokens > 2 * per_minute:
        raise InvalidRequestError(
            f"{len(requests)} samples of up to {most_tokens} tokens together are more than this key gets in "
            f"two minutes, {2 * per_minute}",
            hint="request fewer samples at once, or set a smaller max_tokens",
            field="max_tokens",
            code=BEYOND_RATE,
        )
    if not getattr(request.state, "is_admitted", False):
        await parts_of(request).rates.admit(rate, sum(len(one.prompt_ids) for one in requests))
        request.state.is_admitted = True


def _in_own_sessions(requests: list[SampleRequest], tenant_id: str) -> list[SampleRequest]:
    """Prefix the sessions with the tenant, even an empty one: the engine shares caches only within an owner.

    Timing could reveal the contents of a shared cache, such as another tenant's prompt to the same model.
    """
    owned = SeatRef.prefix_of(tenant_id)
    return [one.model_copy(update={"session_id": owned + one.session_id}) for one in requests]


def _batch_json(requests: list[SampleRequest], together: bool) -> bytes:
    return SampleBatch.model_construct(requests=requests, together=together).model_dump_json().encode()


async def _lines(sources: list[AsyncIterator[bytes]], *, streams: bool) -> AsyncGenerator[bytes, None]:
    """Yield what the pools send; of streams whole lines, some of which are parts of completions."""
    one = whole_lines(sources[0]) if streams else sources[0]
    async for chunk in one if len(sources) == 1 else _merged(sources):
        yield chunk


async def _merged(sources: list[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """Interleave streams of lines without splitting a line."""
    arrived: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)

    async def pump(source: AsyncIterator[bytes]) -> None:
        async for lines in whole_lines(source):
            await arrived.put(lines)
        await arrived.put(None)

    async with asyncio.TaskGroup() as group:
        for source in sources:
            group.create_task(pump(source))
        for _ in sources:
            while (lines := await arrived.get()) is not None:
                yield lines
