"""Sessions of agent programs elsewhere: opened by a tenant, then used with a key of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request, Response

from backend.gateway.dependencies import Tenant, key_of, own_url, refuse_many_values
from backend.gateway.fair_threads import FairRoute, FairThreads, in_turn
from backend.openai_api.image_intake import image_check
from backend.openai_api.program_sessions import PREFIX, OpenedSession, ProgramSessions
from backend.openai_api.sse import EventsResponse
from backend.store.store import TenantStore
from tinkergym.errors import ConflictError
from tinkergym.recording.program_replies import (
    AwaitedReply,
    ProgramReply,
    StreamedReply,
    begun,
    listed,
    rewarded,
)
from tinkergym.schema.episodes import SessionView

Value = TypeVar("Value")

router = APIRouter(route_class=FairRoute)
# Those below a session take its own key instead of a tenant's, and are described by the OpenAI API.


@router.post("/v1/jobs/{job_id}/sessions")
async def open_session(
    request: Request,
    tenant: Tenant,
    job_id: str,
    wait_seconds: Annotated[int, Query(ge=0, le=60)] = 30,
) -> SessionView:
    """Open a session of a job's agent program: one episode, whose calls and reward the program sends."""
    await in_turn(tenant.tenant_id, _require_program, tenant, job_id)
    opened = await _threaded(
        request,
        tenant.tenant_id,
        partial(
            _sessions(request).next,
            job_id,
            tenant.tenant_id,
            own_url(request),
            key_of(request),
            wait_seconds,
        ),
    )
    return _view(str(request.base_url).rstrip("/"), opened)


@router.get(PREFIX + "/{name}/{role}/v1/models", include_in_schema=False)
async def list_session_models(request: Request, name: str, role: str) -> Response:
    """List the role, for programs that look for a model."""
    session = _sessions(request).server.session(name, key_of(request))
    return _response(listed(session, role))


@router.post(PREFIX + "/{name}/reward", include_in_schema=False)
async def post_reward(request: Request, name: str) -> Response:
    """Take the reward of a session, which ends it."""
    session = _sessions(request).server.session(name, key_of(request))
    body = await request.body()
    return _response(
        await _threaded(request, _sessions(request).owner_of(name), partial(rewarded, session, body))
    )


@router.post(PREFIX + "/{name}/{role}/v1/{route:path}", include_in_schema=False)
async def call_session(request: Request, name: str, role: str, route: str) -> Response:
    """Answer a call of a program, as the OpenAI API does."""
    session = _sessions(request).server.session(name, key_of(request))
    body, repeats = await request.body(), request.headers.get("x-stainless-retry-count", "")
    owner = _sessions(request).owner_of(name)
    check = image_check(request, owner)

    def begin() -> AwaitedReply | StreamedReply:
        refuse_many_values(request, body)
        return begun(session, role, route, body, repeats=repeats, read_image=check)

    # Rendering has the deadline of other routes; only the wait for tokens may be long.
    begins = await in_turn(owner, begin)
    if isinstance(begins, StreamedReply):
        return await _streamed(request, owner, begins)
    reply = await _threaded(request, owner, begins.wait)
    if reply.call is not None and not await request.is_disconnected():
        reply.call.is_delivered = True  # Never taken back: a repeat may have got it.
    return _response(reply)


def _sessions(request: Request) -> ProgramSessions:
    found: ProgramSessions = request.app.state.program_sessions
    return found


async def _threaded(request: Request, whose: str, call: Callable[[], Value]) -> Value:
    threads: FairThreads = request.app.state.program_calls
    return await threads.run(whose, call)


async def _streamed(request: Request, whose: str, reply: StreamedReply) -> Response:
    is_gone = False
    chunks = reply.chunks(lambda: is_gone)

    async def following() -> bytes:
        # A turn and a thread per chunk: a program that reads slowly keeps none.
        return await _threaded(request, whose, partial(next, chunks, b""))

    @asynccontextmanager
    async def held() -> AsyncGenerator[None, None]:
        nonlocal is_gone
        try:
            yield
        finally:
            is_gone = True

    async def sent() -> AsyncGenerator[bytes, None]:
        chunk = first
        while chunk:
            yield chunk
            chunk = await following()

    first = await following()
    return EventsResponse(sent(), inf, held())


def _require_program(tenant: TenantStore, job_id: str) -> None:
    job = tenant.get_job(job_id)
    played = job.spec.played
    if played is None or not played.environment.is_program:
        raise ConflictError(f"{job_id} trains no agent program", hint="start it with client.train_agent(...)")
    if job.state.final:
        raise ConflictError(f"{job_id} has ended", hint="start another job", code="job_ended")


def _view(base_url: str, opened: OpenedSession) -> SessionView:
    session = opened.session
    return SessionView(
        key=session.key,
        urls={role: base_url + url for role, url in session.urls.items()},
        reward_url=base_url + session.reward_url,
        seed=session.seed,
        task_index=opened.task_index,
        is_evaluation=session.is_evaluation,
        timeout_seconds=session.timeout_seconds,
    )


def _response(reply: ProgramReply) -> Response:
    return Response(reply.body, media_type=reply.media_type)
