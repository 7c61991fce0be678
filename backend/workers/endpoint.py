"""A pool's internal HTTP endpoint: sampling and episodes for environment workers and for the gateway.

It listens at the pool's URL and requires the pool's token. The gateway has checked the owner of a job or
policy; nothing else has the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backend import worker_url
from backend.engines.protocol import Deliver
from backend.lines_response import LinesResponse
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    TinkerGymError,
)
from tinkergym.schema.data import ImageKept, ImageNames
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.sampling import Completion, CompletionPart, SampleBatch, SampleFailure, SampleRequest
from tinkergym.schema.views import RendererBundle

_log = logging.getLogger(__name__)
_Body = TypeVar("_Body", bound=BaseModel)

_LONG_POLLS = 128
"""Threads for calls that wait for new episodes; separate, because idle workers must not delay busy ones."""
_BLOCKING_CALLS = 64
"""Threads for other waiting calls: storing results, loading a checkpoint."""
_RENEWALS = 4
"""Threads for calls that only wait for a lock."""


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays episodes: a worker of a job, or a worker that serves any job of one tenant."""

    job_id: str
    worker_id: str

    @classmethod
    def of(cls, request: Request) -> Player:
        """Read the player's identity."""
        asked = request.query_params
        return cls(asked.get("job_id", ""), asked.get("worker_id", ""))


class PoolService(Protocol):
    """The functions of the endpoint. All methods may be called from several threads."""

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver, *, together: bool = False) -> None:
        """Answer each request once through `deliver`; `together` waits for all, see `SampleBatch`."""
        ...

    def prove(self) -> None:
        """Return once a token was sampled; raises our own error if it cannot be."""
        ...

    def lease(self, request: LeaseRequest, job_id: str) -> LeaseReply:
        """Lease episodes; waits for some."""
        ...

    def vanished(self, worker_id: str, job_id: str) -> None:
        """Issue the episodes of a worker again whose connection broke while it waited."""
        ...

    def submit(self, request: SubmitRequest, job_id: str) -> SubmitReply:
        """Store results; with a job, only its own."""
        ...

    def wait_for_call(self, job_id: str, seq: int, seconds: float) -> None:
        """Notify a policy of a new call and wait until it is done, at most `seconds`."""
        ...

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids."""
        ...

    def missing_images(self, wanted: ImageNames, player: Player) -> ImageNames:
        """Return which images the player's tenant has not sent."""
        ...

    def add_image(self, sha256: str, data: bytes, player: Player) -> ImageKept:
        """Store an image for the player's tenant."""
        ...


class PoolEndpoint:
    """Serves a `PoolService` from a thread until closed."""

    def __init__(self, service: PoolService, url: str, token: str, *, long_polls: int = _LONG_POLLS) -> None:
        """Listen at `url`, or at a free port for port 0; `self.url` then has the port.

        Requests are handled from now on, `long_polls` of workers at a time.
        """
        self._service = service
        self._token = token.encode()
        self._polls = ThreadPoolExecutor(long_polls, thread_name_prefix="pool-endpoint-poll")
        self._threads = ThreadPoolExecutor(_BLOCKING_CALLS, thread_name_prefix="pool-endpoint")
        self._renewals = ThreadPoolExecutor(_RENEWALS, thread_name_prefix="pool-endpoint-renewal")
        routes = [
            Route("/sample", self._guarded(self._sample), methods=["POST"]),
            Route("/episodes/lease", self._guarded(self._lease), methods=["POST"]),
            Route("/episodes/vanished", self._guarded(self._vanished), methods=["POST"]),
            Route("/episodes/submit", self._guarded(self._submit), methods=["POST"]),
            Route("/policies/wait", self._guarded(self._wait_for_call), methods=["POST"]),
            Route("/renderer", self._guarded(self._renderer), methods=["GET"]),
            Route("/images/missing", self._guarded(self._missing_images), methods=["POST"]),
            Route("/images/{sha256}", self._guarded(self._add_image), methods=["PUT"]),
            Route("/prove", self._guarded(self._prove), methods=["POST"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=300,
            log_config=None,
        )
        self._server = uvicorn.Server(config)
        self._listener, self.url = worker_url.listen(url)
        self._thread = threading.Thread(target=self._run, name="pool-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end requests in progress."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=5.0)
        for threads in (self._polls, self._threads, self._renewals):
            threads.shutdown(wait=False, cancel_futures=True)
        worker_url.remove(self.url)

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def _guarded(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            try:
                self._check_token(request)
                return await answer(request)
            except TinkerGymError as error:
                return JSONResponse({"error": error.to_wire()}, status_code=error.http_status)
            except ClientDisconnect:
                return Response(status_code=499)  # The client is gone.
            except Exception as error:
                _log.exception("%s failed", request.url.path)
                wrapped = InternalServiceError(f"the pool failed at {request.url.path}: {error!r}")
                return JSONResponse({"error": wrapped.to_wire()}, status_code=500)

        return handler

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            raise AuthenticationError("the pool's token is missing or wrong")

    async def _in_thread(self, threads: ThreadPoolExecutor, call: Callable[[], BaseModel]) -> Response:
        """Run a blocking function in a thread, and convert its result to JSON there."""
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(threads, lambda: call().model_dump_json())
        return Response(body, media_type="application/json")

    async def _lease(self, request: Request) -> Response:
        wanted = _parse(LeaseRequest, await request.body())
        job_id = request.query_params.get("job_id", "")
        waits = wanted.wait_seconds > 0 and wanted.max_episodes > 0
        # Renewals never queue behind waiting calls: a late one means a lost lease.
        threads = self._polls if waits else self._renewals
        return await self._in_thread(threads, lambda: self._service.lease(wanted, job_id))

    async def _vanished(self, request: Request) -> Response:
        wanted, job_id = _parse(LeaseRequest, await request.body()), request.query_params.get("job_id", "")
        self._service.vanished(wanted.worker_id, job_id)
        return Response(status_code=204)

    async def _submit(self, request: Request) -> Response:
        body, job_id = await request.body(), request.query_params.get("job_id", "")
        return await self._in_thread(
            self._threads, lambda: self._service.submit(_parse(SubmitRequest, body), job_id)
        )

    async def _wait_for_call(self, request: Request) -> Response:
        asked = request.query_params
        job_id, seq, seconds = asked["job_id"], int(asked["seq"]), float(asked["seconds"])
        threads = self._polls if seconds > 0 else self._renewals
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads, self._service.wait_for_call, job_id, seq, seconds)
        return Response(status_code=204)

    async def _renderer(self, request: Request) -> Response:
        model = request.query_params.get("model", "")
        return await self._in_thread(self._threads, lambda: self._service.renderer(model))

    async def _missing_images(self, request: Request) -> Response:
        wanted, player = _parse(ImageNames, await request.body()), Player.of(request)
        return await self._in_thread(self._threads, lambda: self._service.missing_images(wanted, player))

    async def _add_image(self, request: Request) -> Response:
        body, player = await request.body(), Player.of(request)
        sha256 = str(request.path_params["sha256"])
        return await self._in_thread(self._threads, lambda: self._service.add_image(sha256, body, player))

    async def _prove(self, _request: Request) -> Response:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._service.prove)
        return Response(status_code=204)

    async def _sample(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        batch = _parse(SampleBatch, await request.body())
        receiver = _Receiver(loop, len(batch.requests))
        # In a thread, because a policy may have to be loaded first.
        sample = partial(self._service.sample, batch.requests, receiver, together=batch.together)
        await loop.run_in_executor(self._threads, sample)
        # How many parts there will be is not known.
        streams = any(wanted.stream for wanted in batch.requests)
        return LinesResponse(receiver.lines(), inf if streams else len(batch.requests), receiver)


class _Receiver:
    """Passes a call's completions from the engine's thread to the event loop; implements `Deliver`.

    Entered while a client waits for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wanted: int) -> None:
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
            self._wanted -= sum([not isinstance(answer, CompletionPart) for answer in answers])
            # Unrequested fields are left out: most completions have no text and no further logprobs.
            lines = [answer.model_dump_json(exclude_none=True) + "\n" for answer in answers]
            yield "".join(lines).encode()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        self.gone = True


def _parse(kind: type[_Body], body: bytes) -> _Body:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequestError(first["msg"], field=field) from error
