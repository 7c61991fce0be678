"""An HTTP server of a worker: listens at its URL, requires its token, and turns our errors into responses."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from backend import worker_url
from backend.fairness.fair_places import FairPlaces, Hold
from backend.lines_response import LinesResponse
from backend.network.server_stop import AnswersAtStop, QuietServer, error_reply
from backend.processes.exhaustion import end_if_exhausted
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    TinkerGymError,
    TooManyRequestsError,
)
from tinkergym.schema.sampling import Completion, CompletionPart, SampleBatch, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)
_Body = TypeVar("_Body", bound=BaseModel)

Handler = Callable[[Request], Awaitable[Response]]
Sample = Callable[[Sequence[SampleRequest], Deliver, bool], None]
"""Answers each request once through `deliver`; the last argument is `SampleBatch.together`."""


class _Server(QuietServer):
    """Ends immediately if no request is in progress; uvicorn's takes 0.2 s."""

    def end(self) -> None:
        """Stop listening and end requests in progress; called from another thread."""
        self.force_exit = True
        self.tell_to_exit()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections; a request in progress has a tenth of a second."""
        for server in (*self.servers, *(sockets or ())):
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=0.1)


class WorkerServer:
    """Serves handlers from a thread until closed."""

    def __init__(self, name: str, url: str, token: str, handlers: Mapping[tuple[str, str], Handler]) -> None:
        """Listen at `url`, or at a free port for port 0; `self.url` then has the port.

        Args:
            name: Of the thread.
            url: See `backend.worker_url.listen`.
            token: The token that every request must present.
            handlers: By method and path.
        """
        self._token = token.encode()
        routes = [
            Route(path, self._guarded(handler), methods=[method])
            for (method, path), handler in handlers.items()
        ]
        config = uvicorn.Config(
            AnswersAtStop(Starlette(routes=routes)),
            lifespan="off",
            access_log=False,
            log_level="warning",
            # Longer than its callers keep idle connections, so that they close first: a request that is sent
            # while a server closes would be lost.
            timeout_keep_alive=300,
            log_config=None,
        )
        self._server = _Server(config)
        self._listener, self.url = worker_url.listen(url)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end requests in progress."""
        self._server.end()
        self._thread.join(timeout=5.0)
        worker_url.remove(self.url)

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def _guarded(self, answer: Handler) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                self._check_token(request)
                return await answer(request)
            except TinkerGymError as error:
                return error_reply(error)
            except ClientDisconnect:
                return Response(status_code=499)  # The client is gone.
            except Exception as error:
                _log.exception("%s failed", request.url.path)
                end_if_exhausted(error)
                wrapped = InternalServiceError(f"the worker failed at {request.url.path}: {error!r}")
                return error_reply(wrapped)

        return handler

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            raise AuthenticationError("the worker's token is missing or wrong")


async def in_thread(threads: ThreadPoolExecutor, call: Callable[[], BaseModel]) -> Response:
    """Run a blocking function in a thread, and convert its result to JSON there."""
    loop = asyncio.get_running_loop()
    body = await loop.run_in_executor(threads, lambda: call().model_dump_json())
    return Response(body, media_type="application/json")


async def sampled(
    request: Request, threads: ThreadPoolExecutor, sample: Sample, in_flight: FairPlaces | None = None
) -> Response:
    """Answer a `SampleBatch` with a line per request, as soon as each is there.

    Args:
        request: The HTTP request.
        threads: `sample` runs in one of them.
        sample: Begins to sample.
        in_flight: Unanswered requests by tenant; None does not limit them.
    """
    loop = asyncio.get_running_loop()
    batch = read_body(SampleBatch, await request.body())
    receiver = _Receiver(loop, len(batch.requests), _flying(batch, in_flight))
    try:
        # In a thread, because a policy may have to be loaded first.
        await loop.run_in_executor(threads, partial(sample, batch.requests, receiver, batch.together))
    except BaseException:
        # It is never entered now, and holds places of the tenant.
        await receiver.__aexit__()
        raise
    # How many parts there will be is not known.
    streams = any(wanted.stream for wanted in batch.requests)
    return LinesResponse(receiver.lines(), inf if streams else len(batch.requests), receiver)


def _flying(batch: SampleBatch, in_flight: FairPlaces | None) -> Hold | None:
    """Count requests until they are answered; those of the service's own workers have no tenant.

    Raises:
        TooManyRequestsError: The tenant has too many in flight here already, through whichever gateway.
    """
    owner = batch.requests[0].seat.owner
    if in_flight is None or not owner:
        return None
    hold = Hold(in_flight, owner)
    if not hold.take(len(batch.requests)):
        raise TooManyRequestsError(
            f"{in_flight.held(owner)} of your sampling requests are in flight, and the service allows "
            f"{in_flight.most_of_one} at a time",
            hint="send more when some have finished; the operator can raise limits.samples_in_flight",
        )
    return hold


class _Receiver:
    """Passes a call's completions from the engine's thread to the event loop; implements `Deliver`.

    Entered while a client waits for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wanted: int, flying: Hold | None) -> None:
        self._flying = flying
        self.gone = False
        """Whether the caller disconnected, see `Deliver`."""
        self._loop = loop
        self._wanted = wanted
        self._arrived: asyncio.Queue[Sequence[Completion | CompletionPart | SampleFailure]] = asyncio.Queue()

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        # The loop may be closed by now: then no client waits for the completion.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, list(answers))

    def parts(self, parts: Sequence[CompletionPart]) -> None:
        """Pass on tokens of unfinished requests, see `Deliver`."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, list(parts))

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the completions, and parts of them, as they arrive."""
        while self._wanted > 0:
            answers = await self._arrived.get()
            whole = sum([not isinstance(answer, CompletionPart) for answer in answers])
            self._wanted -= whole
            if self._flying is not None:
                self._flying.give(whole)
            # Unrequested fields are left out: most completions have no text and no further logprobs.
            lines = [answer.model_dump_json(exclude_none=True) + "\n" for answer in answers]
            yield "".join(lines).encode()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        self.gone = True
        if self._flying is not None:
            self._flying.give(self._flying.count)


def read_body(kind: type[_Body], body: bytes) -> _Body:
    """Read JSON; raises InvalidRequestError with the field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequestError(first["msg"], field=field) from error
