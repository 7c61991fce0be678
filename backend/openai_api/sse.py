"""Streams of the OpenAI API: server-sent events made from the pools' answers while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import inf

from fastapi import Request
from starlette.types import Message, Receive, Scope, Send

from backend.gateway.fair_threads import in_turn_if_large
from backend.gateway.routes_sample import Sampling, begin_sampling
from backend.lines_response import LinesResponse
from backend.openai_api.sampled import completion_in, patiently, unless_gone
from backend.store.store import TenantStore
from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.openai_api.server_events import SILENT_SECONDS, STILL_SAMPLING, Events, as_event, as_events
from tinkergym.schema.sampling import Completion, CompletionPart, SampleRequest

Answers = list[Completion | CompletionPart]


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

    async def begin() -> tuple[Sampling, int, Answers]:
        asked = [one.model_copy(update={"stream": True}) for one in wanted]
        sampling = await begin_sampling(request, tenant, asked)
        try:
            first = await anext(sampling.lines, b"")
            answers = await in_turn_if_large(tenant.tenant_id, len(first), _read, first)
        except BaseException:
            await sampling.held.aclose()
            raise
        return sampling, len(first), answers

    sampling, size, first = await unless_gone(request, patiently(request, begin))
    choices = _Choices({one.request_id: place for place, one in enumerate(wanted)}, events)

    async def chunks() -> AsyncGenerator[bytes, None]:
        async with aclosing(sampling.lines):
            try:
                yield await in_turn_if_large(tenant.tenant_id, size, choices.take, first)
                async for lines in sampling.lines:
                    yield await in_turn_if_large(tenant.tenant_id, len(lines), choices.read, lines)
                choices.require_all()
            except TinkerGymError as error:
                _, reply = reply_to(error)
                yield as_event(reply)

    return EventsResponse(chunks(), inf, sampling.held)


class _Choices:
    """Which choices have ended."""

    def __init__(self, places: dict[str, int], events: Events) -> None:
        self._places, self._events = places, events
        self._missing = set(places)

    def read(self, lines: bytes) -> bytes:
        """Return the events for some lines; otherwise as `take`.

        Raises:
            TinkerGymError: One says that a request failed.
        """
        return self.take(_read(lines))

    def take(self, answers: Answers) -> bytes:
        """Return the events for some answers, and what follows the last."""
        sent = bytearray()
        for answer in answers:
            place = self._places[answer.request_id]
            if isinstance(answer, Completion):
                self._missing.discard(answer.request_id)
                found = self._events.end(place, answer)
            else:
                found = self._events.part(place, answer)
            sent += as_events(found)
            if not self._missing:
                sent += self._events.closing()
        return bytes(sent)

    def require_all(self) -> None:
        """Check that none is missing at the end.

        Raises:
            ServiceUnavailableError: One is.
        """
        if self._missing:
            raise ServiceUnavailableError("the model's worker broke off", hint="send the request again")


def _read(lines: bytes) -> Answers:
    """Return the answers in some lines.

    Raises:
        TinkerGymError: One says that a request failed.
    """
    return [
        CompletionPart.model_validate_json(line) if CompletionPart.is_in(line) else completion_in(line)
        for line in lines.splitlines()
    ]
