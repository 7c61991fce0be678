"""A pool's internal HTTP endpoint: sampling and episodes for environment workers and for the gateway.

It listens at the pool's URL and requires the pool's token. The gateway has checked the owner of a job or
policy; nothing else has the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from backend.engines.spread.orders import Done, EngineJoins, WantedPieces
from backend.fairness.fair_places import FairPlaces
from backend.workers.worker_server import Handler, WorkerServer, in_thread, read_body, sampled
from tinkergym.agent.sampler import Deliver
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.operation import PoolProof, PoolReport
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.uploaded_data import ImageKept, ImageNames
from tinkergym.schema.views import RendererBundle

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

    def prove(self) -> PoolProof:
        """Return once a token was sampled, or that the engine sleeps; raises our own error if neither."""
        ...

    def report(self) -> PoolReport:
        """Return where it runs, since when, and which environment workers play for it."""
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

    def join_engine(self, joins: EngineJoins) -> Done:
        """Add an engine host to the pool, or note that it lives."""
        ...

    def read_weights(self, wanted: WantedPieces) -> bytes:
        """Return pieces of published weights, one after the other."""
        ...


class PoolEndpoint:
    """Serves a `PoolService` from a thread until closed."""

    def __init__(
        self,
        service: PoolService,
        url: str,
        token: str,
        *,
        long_polls: int = _LONG_POLLS,
        samples_in_flight: float = inf,
    ) -> None:
        """Listen at `url`, or at a free port for port 0; `self.url` then has the port.

        Requests are handled from now on, `long_polls` of workers at a time, and at most `samples_in_flight`
        requests for tokens of each tenant.
        """
        self._service = service
        # Here and not in a gateway: there may be several.
        self._in_flight = FairPlaces(inf, most_of_one=samples_in_flight)
        self._polls = ThreadPoolExecutor(long_polls, thread_name_prefix="pool-endpoint-poll")
        self._threads = ThreadPoolExecutor(_BLOCKING_CALLS, thread_name_prefix="pool-endpoint")
        self._renewals = ThreadPoolExecutor(_RENEWALS, thread_name_prefix="pool-endpoint-renewal")
        handlers: dict[tuple[str, str], Handler] = {
            ("POST", "/sample"): self._sample,
            ("POST", "/episodes/lease"): self._lease,
            ("POST", "/episodes/vanished"): self._vanished,
            ("POST", "/episodes/submit"): self._submit,
            ("POST", "/policies/wait"): self._wait_for_call,
            ("GET", "/renderer"): self._renderer,
            ("POST", "/images/missing"): self._missing_images,
            ("PUT", "/images/{sha256}"): self._add_image,
            ("POST", "/prove"): self._prove,
            ("POST", "/report"): self._report,
            ("POST", "/engines/join"): self._join_engine,
            ("POST", "/weights"): self._weights,
        }
        self._server = WorkerServer("pool-endpoint", url, token, handlers)
        self.url = self._server.url

    def close(self) -> None:
        """Stop listening and end requests in progress."""
        self._server.close()
        for threads in (self._polls, self._threads, self._renewals):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _lease(self, request: Request) -> Response:
        wanted = read_body(LeaseRequest, await request.body())
        job_id = request.query_params.get("job_id", "")
        waits = wanted.wait_seconds > 0 and wanted.max_episodes > 0
        # Renewals never queue behind waiting calls: a late one means a lost lease.
        threads = self._polls if waits else self._renewals
        return await in_thread(threads, lambda: self._service.lease(wanted, job_id))

    async def _vanished(self, request: Request) -> Response:
        wanted, job_id = read_body(LeaseRequest, await request.body()), request.query_params.get("job_id", "")
        self._service.vanished(wanted.worker_id, job_id)
        return Response(status_code=204)

    async def _submit(self, request: Request) -> Response:
        body, job_id = await request.body(), request.query_params.get("job_id", "")
        return await in_thread(
            self._threads, lambda: self._service.submit(read_body(SubmitRequest, body), job_id)
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
        return await in_thread(self._threads, lambda: self._service.renderer(model))

    async def _missing_images(self, request: Request) -> Response:
        wanted, player = read_body(ImageNames, await request.body()), Player.of(request)
        return await in_thread(self._threads, lambda: self._service.missing_images(wanted, player))

    async def _add_image(self, request: Request) -> Response:
        body, player = await request.body(), Player.of(request)
        sha256 = str(request.path_params["sha256"])
        return await in_thread(self._threads, lambda: self._service.add_image(sha256, body, player))

    async def _prove(self, _request: Request) -> Response:
        return await in_thread(self._threads, self._service.prove)

    async def _report(self, _request: Request) -> Response:
        return await in_thread(self._renewals, self._service.report)

    async def _sample(self, request: Request) -> Response:
        return await sampled(
            request,
            self._threads,
            lambda requests, deliver, together: self._service.sample(requests, deliver, together=together),
            self._in_flight,
        )

    async def _join_engine(self, request: Request) -> Response:
        joins = read_body(EngineJoins, await request.body())
        return await in_thread(self._renewals, lambda: self._service.join_engine(joins))

    async def _weights(self, request: Request) -> Response:
        wanted = read_body(WantedPieces, await request.body())
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(self._threads, self._service.read_weights, wanted)
        return Response(data, media_type="application/octet-stream")
