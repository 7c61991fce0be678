"""Streams of the OpenAI API: server-sent events made from the pools' answers while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from math import inf

from fastapi import Request

from backend.gateway.sample_dispatch import Sampling, begin_sampling
from backend.lines_response import LinesResponse
from backend.openai_api.sampled import patiently, unless_gone
from backend.store.store import TenantStore
from tinkergym.errors import ServiceUnavailableError, TinkerGymError, from_wire
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.openai_api.server_events import SILENT_SECONDS, STILL_SAMPLING, Events, as_event
from tinkergym.schema.sampling import Completion, CompletionPart, SampleFailure, SampleRequest, read_answer


class EventsResponse(LinesResponse):
    """Sends events; ends the work for them when the client disconnects."""

    media_type = "text/event-stream"


async def streamed(
    request: Request,
    tenant: TenantStore,
    wanted: list[SampleRequest],
    events: Events,
) -> EventsResponse:
    """Return a response that streams the choices of these requests.

    Args:
        request: The client's request.
        tenant: Its tenant.
        wanted: The requests for tokens, in the order of the choices.
        events: Makes the events.

    Raises:
        TinkerGymError: The first answer is an error. Later ones are events.
    """

    async def begin() -> tuple[Sampling, bytes]:
        asked = [one.model_copy(update={"stream": True}) for one in wanted]
        sampling = await begin_sampling(request, tenant, asked)
        try:
            first = await anext(sampling.lines, b"")
            for line in first.splitlines():
                _read(line)
        except BaseException:
            await sampling.held.aclose()
            raise
        return sampling, first

    sampling, first = await unless_gone(request, patiently(request, begin))
    places = {one.request_id: place for place, one in enumerate(wanted)}
    chunks = _events(_Choices(places, events), first, sampling.lines)
    return EventsResponse(chunks, inf, sampling.held)


class _Choices:
    """Which choices have ended."""

    def __init__(self, places: dict[str, int], events: Events) -> None:
        self._places, self.events = places, events
        self.missing = set(places)

    def take(self, chunk: bytes) -> bytes:
        """Return the events for some lines.

        Raises:
            TinkerGymError: One says that a request failed.
        """
        sent = bytearray()
        for line in chunk.splitlines():
            answer = _read(line)
            place = self._places[answer.request_id]
            if isinstance(answer, Completion):
                self.missing.discard(answer.request_id)
                found = self.events.end(place, answer)
            else:
                found = self.events.part(place, answer)
            for event in found:
                sent += as_event(event)
        return bytes(sent)


async def _events(
    choices: _Choices, first: bytes, lines: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    try:
        yield choices.take(first)
        async for chunk in _with_comments(lines, SILENT_SECONDS):
            yield STILL_SAMPLING if chunk is None else choices.take(chunk)
        if choices.missing:
            raise ServiceUnavailableError("the model's worker broke off", hint="send the request again")
    except TinkerGymError as error:
        _, reply = reply_to(error)
        yield as_event(reply)
        return
    yield choices.events.closing()


async def _with_comments(lines: AsyncGenerator[bytes, None], seconds: float) -> AsyncIterator[bytes | None]:
    """Yield the chunks, and None whenever none has come for so long."""
    coming = asyncio.ensure_future(anext(lines, b""))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=seconds)
            if not done:
                yield None
                continue
            if not (chunk := coming.result()):
                return
            coming = asyncio.ensure_future(anext(lines, b""))
            yield chunk
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError):
            await coming
        await lines.aclose()


def _read(line: bytes) -> Completion | CompletionPart:
    if CompletionPart.is_in(line):
        return CompletionPart.model_validate_json(line)
    answer = read_answer(line)
    if isinstance(answer, SampleFailure):
        raise from_wire(answer.error.model_dump())
    return answer
