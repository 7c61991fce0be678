"""A job's log as server-sent events, resumable with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from backend.gateway.dependencies import NumberQuery, Tenant, key_of
from backend.gateway.fair_threads import FairRoute, in_turn, read_now
from backend.gateway.key_watch import KEY_CHECK_SECONDS
from backend.gateway.shown_views import Shown, shown_to
from backend.gateway.wiring import parts_of
from backend.store.store import TenantStore
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import Event, StateEvent

HEARTBEAT_SECONDS = 10.0
"""Without events, send a comment this often, so that both sides notice a dead connection."""

_PAGE = 500

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)


@router.get("/{job_id}/events", response_class=StreamingResponse)
async def stream_events(
    request: Request,
    tenant: Tenant,
    job_id: str,
    last_event_id: Annotated[str, Header()] = "",
    after: NumberQuery = 0,
) -> StreamingResponse:
    """Stream events after `Last-Event-ID`, and new ones, until the job's final state.

    Browsers send that header only when they reconnect; `after` says where to begin the first time.
    """
    # Python refuses to parse numbers with thousands of digits.
    is_number = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 100
    if last_event_id and not is_number:
        raise InvalidRequestError(
            f"Last-Event-ID must be the number of an event, not {last_event_id[:40]!r}", field="Last-Event-ID"
        )
    after = min(int(last_event_id), 2**62) if last_event_id else after
    # Checked here, so that an unknown job is a 404 and not a broken stream.
    await in_turn(tenant.tenant_id, tenant.get_job, job_id)
    return StreamingResponse(
        _stream(request, tenant, job_id, after),
        media_type="text/event-stream",
        # The second is for nginx, which would hold events back until a buffer is full.
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(request: Request, tenant: TenantStore, job_id: str, after: int) -> AsyncIterator[str]:
    parts, key = parts_of(request), key_of(request)
    tail, loop = parts.tail, asyncio.get_running_loop()
    silent_since = loop.time()
    with tail.watch(job_id) as news:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), KEY_CHECK_SECONDS)
            page = None
            if news.is_set():
                # Before the query, so that an event during it is news again.
                news.clear()
                wanted = tenant.tenant_id, job_id, after
                page = await tail.read(
                    wanted,
                    partial(
                        in_turn, tenant.tenant_id, _page, shown_to(request, tenant), tenant, job_id, after
                    ),
                )
            # After the query, so that nothing recorded after the revocation is sent.
            if await read_now(tenant.tenant_id, parts.store.keys.tenant_of, key) != tenant.tenant_id:
                return  # Revoked; the client retries and gets the error.
            if page is None:
                if loop.time() - silent_since >= HEARTBEAT_SECONDS:
                    yield ": still here\n\n"
                    silent_since = loop.time()
                continue
            silent_since = loop.time()
            if page.frames:
                yield page.frames
                after = page.last
                if page.full:
                    news.set()
            if page.ends:
                return


@dataclass(frozen=True, slots=True)
class _Page:
    """Some of a job's events, ready to be sent."""

    frames: str
    last: int
    """Number of the last event."""
    full: bool
    """Whether there may be more."""
    ends: bool
    """Whether there are no further events."""


def _page(shown: Shown, tenant: TenantStore, job_id: str, after: int) -> _Page:
    # Queried first: an event that ends the job between the two queries is then found by the second.
    over = tenant.get_job(job_id).state.final
    events = tenant.events_after(job_id, after, _PAGE)
    if not events:
        return _Page("", after, full=False, ends=over)  # The client has already seen the end.
    body = events[-1].body
    return _Page(
        "".join(_frame(shown.event(event)) for event in events),
        events[-1].seq,
        full=len(events) == _PAGE,
        ends=isinstance(body, StateEvent) and body.state.final,
    )


def _frame(event: Event) -> str:
    return f"id: {event.seq}\nevent: {event.body.type}\ndata: {event.model_dump_json()}\n\n"
