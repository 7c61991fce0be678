"""Streams of the OpenAI API: server-sent events made from the pools' answers while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import inf

from fastapi import Request
from starlette.types import Message, Receive, Scope, Send

from backend.gateway.fair_threads import in_turn
from backend.gateway.sample_dispatch import Sampling, begin_sampling
from backend.lines_response import LinesResponse
from backend.openai_api.sampled import patiently, unless_gone
from backend.store.store import TenantStore
from tinkergym.errors import ServiceUnavailableError, TinkerGymError, from_wire
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.openai_api.server_events import SILENT_SECONDS, STILL_SAMPLING, Events, as_event, as_events
from tinkergym.schema.sampling import Completion, CompletionPart, SampleFailure, SampleRequest, read_answer

_LARGE_BYTES = 1 << 16


class EventsResponse(LinesResponse):
    """Sends events, and comments while there are none; ends the work for them when the client disconnects."""

    media_type = "text/event-stream"
    silent_seconds = SILENT_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the header and the events; see `LinesResponse`."""
        clock = asyncio.get_running_loop().time
        sent_at, is_open = clock(), True

        async def noting(message: Message) -> None:
            nonlocal sent_at, is_open
            sent_at, is_open = clock(), message.get("more_body", True)
            await send(message)

        async def comment() -> None:
            # A task of its own: to wait for each chunk with a limit took more time than to send it.
            while is_open:
                await asyncio.sleep(sent_at + self.silent_seconds - clock())
                if is_open and clock() - sent_at >= self.silent_seconds:
                    await noting({"type": "http.response.body", "body": STILL_SAMPLING, "more_body": True})

        comments = asyncio.create_task(comment())
        try:
            await super().__call__(scope, receive, noting)
        finally:
            comments.cancel()


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
    chunks = _events(_Choices(places, events, tenant.tenant_id), first, sampling.lines)
    return EventsResponse(chunks, inf, sampling.held)


class _Choices:
    """Which choices have ended."""

    def __init__(self, places: dict[str, int], events: Events, tenant_id: str) -> None:
        self._places, self.events, self._tenant_id = places, events, tenant_id
        self.missing = set(places)

    async def take(self, chunk: bytes) -> bytes:
        """As `_take`; in a thread if it takes long, as with the logprobs of a whole prompt."""
        if len(chunk) < _LARGE_BYTES:
            return self._take(chunk)
        return await in_turn(self._tenant_id, self._take, chunk)

    def _take(self, chunk: bytes) -> bytes:
        """Return the events for some lines, and what follows the last.

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
            sent += as_events(found)
            if not self.missing:
                sent += self.events.closing()
        return bytes(sent)


async def _events(
    choices: _Choices, first: bytes, lines: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(lines):
        try:
            yield await choices.take(first)
            async for chunk in lines:
                yield await choices.take(chunk)
            if choices.missing:
                raise ServiceUnavailableError("the model's worker broke off", hint="send the request again")
        except TinkerGymError as error:
            _, reply = reply_to(error)
            yield as_event(reply)


def _read(line: bytes) -> Completion | CompletionPart:
    if CompletionPart.is_in(line):
        return CompletionPart.model_validate_json(line)
    answer = read_answer(line)
    if isinstance(answer, SampleFailure):
        raise from_wire(answer.error.model_dump())
    return answer
