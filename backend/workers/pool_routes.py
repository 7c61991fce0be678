"""What a pool's endpoint serves."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Sequence
from functools import lru_cache

from backend.catalog.models import load_renderer_bundle
from backend.engines.spread.orders import Done, EngineJoins, WantedPieces
from backend.engines.spread.spread_engine import SpreadEngine
from backend.external.episode_secrets import with_secrets
from backend.workers.endpoint import Player
from backend.workers.pool_health import PoolHealth
from backend.workers.pool_images import PoolImages
from backend.workers.pool_jobs import PoolJobs
from backend.workers.sample_router import SampleRouter
from backend.workers.shared_parts import SharedParts
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import NotFoundError, ServiceUnavailableError, from_wire
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.operation import EnvironmentWorker, PoolProof, PoolReport
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.schema.uploaded_data import ImageKept, ImageNames
from tinkergym.schema.views import RendererBundle

_MOST_BUNDLES = 16
"""The number of cached renderers. Each has a tokenizer of several megabytes; jobs bring their own chat
templates."""
_MOST_SECRETS = 256
"""The number of cached secrets; a name always means the same one."""

_PROVEN_SECONDS = 3.0
"""For this long a sampled token proves that more can be."""


class _First:
    """Puts what is answered into a queue; implements `Deliver`."""

    gone = False

    def __init__(self, arrived: queue.SimpleQueue[Completion | SampleFailure]) -> None:
        self._arrived = arrived

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        for answer in answers:
            self._arrived.put(answer)


class PoolRoutes:
    """Implements `PoolService`: passes each call to the part that answers it, from any thread."""

    def __init__(self, parts: SharedParts, jobs: PoolJobs, images: PoolImages, health: PoolHealth) -> None:
        self._parts, self._jobs, self._images, self._health = parts, jobs, images, health
        self._router = SampleRouter(parts, jobs, images)
        self._sampled_at, self._started_at = float("-inf"), time.time()
        self._bundle = lru_cache(maxsize=_MOST_BUNDLES)(self._load_bundle)
        """By the model, and the chat template that replaces its own."""
        self._secret = lru_cache(maxsize=_MOST_SECRETS)(parts.store.secret)

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver, *, together: bool = False) -> None:
        """Answer each request once through `deliver`; `together` waits for all, see `SampleBatch`."""
        self._health.note_sampling()
        self._router.sample(requests, deliver, together=together)

    def prove(self) -> PoolProof:
        """Sample a token of the model, unless its engine sleeps, has sampled a moment ago, or soon sleeps.

        Raises:
            TinkerGymError: The engine refuses, or does not answer in time.
        """
        if self._parts.own.engine.asleep:
            return PoolProof(sampled=False)  # A request would wake the engine.
        # A request would keep the engine awake that must sleep while a job learns; the job's own are enough.
        plays = self._parts.config.sleep_while_learning and bool(self._jobs.pulses)
        if plays or time.monotonic() - self._sampled_at < _PROVEN_SECONDS:
            return PoolProof(sampled=True)
        arrived: queue.SimpleQueue[Completion | SampleFailure] = queue.SimpleQueue()
        own = self._parts.own.model
        request = SampleRequest(request_id="health", policy=own, prompt_ids=[0], max_tokens=1)
        self._router.sample([request], _First(arrived), together=False)
        try:
            answer = arrived.get(timeout=self._parts.config.lease_seconds)
        except queue.Empty:
            raise ServiceUnavailableError(f"the engine of {own!r} does not answer") from None
        if isinstance(answer, SampleFailure):
            raise from_wire(answer.error.model_dump())
        self._sampled_at = time.monotonic()
        return PoolProof(sampled=True)

    def report(self) -> PoolReport:
        """Return where the pool runs, since when, and which environment workers play for it."""
        workers = [
            EnvironmentWorker(worker_id=worker_id, plays_for=owner, silent_seconds=silent)
            for worker_id, owner, silent in self._parts.boards.server_workers()
        ]
        return PoolReport(
            started_at=self._started_at,
            node=socket.gethostname(),
            device=self._parts.loader.device,
            environment_workers=workers,
        )

    def lease(self, request: LeaseRequest, job_id: str) -> LeaseReply:
        """Lease episodes; waits for some. Only the service's own workers, which name no job, get secrets."""
        reply = self._parts.boards.lease(request, job_id)
        return reply if job_id else with_secrets(reply, self._secret)

    def vanished(self, worker_id: str, job_id: str) -> None:
        """Issue the episodes of a worker again whose connection broke."""
        self._parts.boards.vanished(worker_id, job_id)

    def submit(self, request: SubmitRequest, job_id: str) -> SubmitReply:
        """Store results; with a job, only its own."""
        reply = self._parts.boards.submit(request, job_id)
        for gate in self._jobs.gates.values():
            gate.check_again()
        return reply

    def wait_for_call(self, job_id: str, seq: int, seconds: float) -> None:
        """Notify a policy of a new call and wait until it is done, at most `seconds`."""
        self._parts.bell.wait_until_done(job_id, seq, seconds)

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids."""
        if PolicyRef.is_meant(model):
            ref = PolicyRef.parse(model)
            spec = self._parts.store.job(ref.owner).spec.for_agent(ref.agent)
            return spec.rendered(self._renderer(spec.model, spec.chat_template))
        return self._renderer(model, "")

    def _renderer(self, model: str, template: str) -> RendererBundle:
        own = self._parts.own.model
        if model != own and not self._parts.guests.has(model):
            raise NotFoundError(f"this pool serves {own!r}, not {model!r}", field="model")
        return self._bundle(model, template)

    def missing_images(self, wanted: ImageNames, player: Player) -> ImageNames:
        """Return which images the player's tenant has not sent."""
        return self._images.missing(self._tenant_of(player), wanted)

    def add_image(self, sha256: str, data: bytes, player: Player) -> ImageKept:
        """Store an image for the player's tenant."""
        return self._images.add(self._tenant_of(player), sha256, data)

    def join_engine(self, joins: EngineJoins) -> Done:
        """Add an engine host to the pool, or note that it lives."""
        self._spread.join(joins)
        return Done()

    def read_weights(self, wanted: WantedPieces) -> bytes:
        """Return pieces of published weights, one after the other."""
        return self._spread.read_weights(wanted)

    @property
    def _spread(self) -> SpreadEngine:
        spread = self._parts.own.spread
        if spread is None:
            raise NotFoundError(f"the pool of {self._parts.own.model!r} has one engine only")
        return spread

    def _tenant_of(self, player: Player) -> str:
        pulse = self._jobs.pulses.get(player.job_id)
        boards = self._parts.boards
        tenant = boards.tenant_of(player.worker_id) if pulse is None else pulse.lease.tenant_id
        if tenant is None:
            raise NotFoundError(f"{player} does not play for a job", hint="lease episodes first")
        return tenant

    def _load_bundle(self, model: str, template: str) -> RendererBundle:
        return load_renderer_bundle(model, self._parts.loader.folder_of(model), template)
