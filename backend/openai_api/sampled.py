"""Completions for requests of the OpenAI API: wait for the model, sample, stop when the client is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from backend.gateway.dependencies import key_of
from backend.gateway.fair_threads import in_turn_if_large
from backend.gateway.routes_sample import begin_sampling
from backend.gateway.wiring import parts_of
from backend.lines_response import whole_lines
from backend.store.store import TenantStore
from tinkergym.errors import (
    AuthenticationError,
    ServiceUnavailableError,
    TooManyRequestsError,
    from_wire,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest, read_answer

Value = TypeVar("Value")

_PAUSE_SECONDS = 0.2


async def completions_of(
    request: Request, tenant: TenantStore, wanted: list[SampleRequest]
) -> list[Completion]:
    """Return the completions in the order of the requests.

    Raises:
        TinkerGymError: One failed.
        ServiceUnavailableError: The model was not loaded in time, or its worker died.
    """

    async def sample() -> list[Completion]:
        found = {one.request_id: one async for one in _answers(request, tenant, wanted)}
        if len(found) < len(wanted):
            raise ServiceUnavailableError("the model's worker broke off", hint="send the request again")
        return [found[one.request_id] for one in wanted]

    return await unless_gone(request, patiently(request, sample))


async def patiently(
    request: Request,
    attempt: Callable[[], Awaitable[Value]],
    on_wait: Callable[[ServiceUnavailableError], None] | None = None,
) -> Value:
    """Return what `attempt` returns; repeat it while the model is being loaded, for a limited time.

    Args:
        request: The client's request.
        attempt: What to do.
        on_wait: Told why it is repeated.

    Raises:
        ServiceUnavailableError: It was not loaded in time.
    """
    deadline = time.monotonic() + parts_of(request).config.limits.warm_up_seconds
    while True:
        try:
            return await attempt()
        except TooManyRequestsError:
            raise
        except ServiceUnavailableError as error:
            if time.monotonic() >= deadline:
                raise
            if on_wait is not None:
                on_wait(error)
            if await parts_of(request).rights_of(key_of(request)) is None:
                # It may be what ended the answer.
                raise AuthenticationError("the API key is unknown or revoked") from None
            await asyncio.sleep(_PAUSE_SECONDS)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """Return what `work` returns, or cancel it when the client disconnects.

    Raises:
        ClientDisconnect: The client is gone.
    """
    task = asyncio.create_task(work)
    await done_or_gone(request, task)
    return task.result()


async def done_or_gone(request: Request, task: asyncio.Task[Any], *, seconds: float | None = None) -> None:
    """Wait until a task is done, or for so long; cancel it when the client disconnects before.

    Raises:
        ClientDisconnect: The client is gone.
    """
    gone, goes_on = asyncio.create_task(_gone(request)), False
    try:
        await asyncio.wait([task, gone], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        goes_on = task.done() or not gone.done()
    finally:
        gone.cancel()
        if not goes_on:
            task.cancel()
            await asyncio.wait([task])
    if not goes_on:
        raise ClientDisconnect


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answers(
    request: Request, tenant: TenantStore, wanted: list[SampleRequest]
) -> AsyncIterator[Completion]:
    sampling = await begin_sampling(request, tenant, list(wanted))
    async with sampling.held, aclosing(sampling.lines):
        async for lines in whole_lines(sampling.lines):
            for answer in await in_turn_if_large(tenant.tenant_id, len(lines), _read, lines):
                yield answer


def _read(lines: bytes) -> list[Completion]:
    return [completion_in(line) for line in lines.splitlines()]


def completion_in(line: bytes) -> Completion:
    """Return the completion in a line.

    Raises:
        TinkerGymError: The request failed.
    """
    answer = read_answer(line)
    if isinstance(answer, SampleFailure):
        raise from_wire(answer.error.model_dump())
    return answer
