"""Streams of the OpenAI API: server-sent events made from the pools' answers while they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from math import inf
from typing import Any, Self

from fastapi import Request
from starlette.types import Message, Receive, Scope, Send

from backend.gateway.error_responses import shown
from backend.gateway.fair_threads import in_turn_if_large
from backend.gateway.routes_sample import Sampling, begin_sampling
from backend.lines_response import LinesResponse
from backend.openai_api.sampled import completion_in, done_or_gone, patiently
from backend.store.store import TenantStore
from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.openai_api.server_events import (
    OPENS_SECONDS,
    SILENT_SECONDS,
    STILL_SAMPLING,
    Events,
    as_comment,
    as_event,
    as_events,
)
from tinkergym.schema.sampling import Completion, CompletionPart, SampleRequest

Begun = tuple[Sampling, bytes]
"""Requests that pools are answering, and their first events."""


class EventsResponse(LinesResponse):
    """Sends events, and comments while there are none; ends the work for them when the client disconnects."""

    media_type = "text/event-stream"
    silent_seconds = SILENT_SECONDS
    opens_seconds = OPENS_SECONDS

    @classmethod
    async def opened(
        cls,
        request: Request,
        work: Coroutine[Any, Any, Begun],
        following: Callable[[Sampling], AsyncGenerator[bytes, None]],
        reason: Callable[[], str],
    ) -> Self:
        """Return a response as soon as some work has begun, or takes long; then its reason is sent meanwhile.

        Args:
            request: The client's request.
            work: Begins the work.
            following: Returns the other events.
            reason: Returns why it has not begun.

        Raises:
            TinkerGymError: The work did not begin. Later errors are events.
        """
        begun = asyncio.create_task(work)
        await done_or_gone(request, begun, seconds=cls.opens_seconds)

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                while not begun.done():
                    yield as_comment(reason())
                    await asyncio.wait([begun], timeout=cls.opens_seconds)
                sampling, first = begun.result()
                yield first
                async with aclosing(following(sampling)) as events:
                    async for event in events:
                        yield event
            except TinkerGymError as error:
                _, reply = reply_to(shown(request, error))
                yield as_event(reply)

        @asynccontextmanager
        async def held() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                begun.cancel()
                await asyncio.wait([begun])
                if not begun.cancelled() and begun.exception() is None:
                    await begun.result()[0].held.aclose()

        if begun.done():
            begun.result()  # An error is a status as long as nothing was sent.
        return cls(chunks(), inf, held())

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
    choices = _Choices({one.request_id: place for place, one in enumerate(wanted)}, events)
    reason = "the model's worker has not accepted the request yet"

    def is_loading(error: ServiceUnavailableError) -> None:
        nonlocal reason
        reason = str(shown(request, error))

    async def begin() -> Begun:
        nonlocal reason
        asked = [one.model_copy(update={"stream": True}) for one in wanted]
        sampling = await begin_sampling(request, tenant, asked)
        reason = "the model has not sampled the first token yet"
        try:
            lines = await anext(sampling.lines, b"")
            if not lines:
                choices.require_all()
            return sampling, await in_turn_if_large(tenant.tenant_id, len(lines), choices.read, lines)
        except BaseException:
            await sampling.held.aclose()
            raise

    async def following(sampling: Sampling) -> AsyncGenerator[bytes, None]:
        async with aclosing(sampling.lines):
            async for lines in sampling.lines:
                yield await in_turn_if_large(tenant.tenant_id, len(lines), choices.read, lines)
            choices.require_all()

    begun = patiently(request, begin, is_loading)
    return await EventsResponse.opened(request, begun, following, lambda: reason)


class _Choices:
    """Which choices have ended."""

    def __init__(self, places: dict[str, int], events: Events) -> None:
        self._places, self._events = places, events
        self._missing = set(places)

    def read(self, lines: bytes) -> bytes:
        """Return the events for some lines, and what follows the last.

        Raises:
            TinkerGymError: One says that a request failed; then none is taken.
        """
        sent = bytearray()
        for answer in _read(lines):
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


def _read(lines: bytes) -> list[Completion | CompletionPart]:
    """Return the answers in some lines.

    Raises:
        TinkerGymError: One says that a request failed.
    """
    return [
        CompletionPart.model_validate_json(line) if CompletionPart.is_in(line) else completion_in(line)
        for line in lines.splitlines()
    ]
