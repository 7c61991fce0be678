"""The pool of a scripted service, called in the process: completions come from a function."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread

from backend.gateway.pool_proxy import Bytes, PoolProxy, PoolStream
from backend.store.store import PoolRecord
from backend.testing.scripted_jobs import ScriptedJobs
from tinkergym.agent.renderer import Renderer
from tinkergym.schema.episodes import LeaseRequest, SubmitRequest
from tinkergym.schema.operation import PoolProof
from tinkergym.schema.sampling import Completion, SampleBatch, SampleFailure, SampleRequest
from tinkergym.schema.views import RendererBundle
from tinkergym.testing.samplers import ScriptedSampler, parts_of


class ScriptedPool(PoolProxy):
    """Answers in place of the pool that a `PoolProxy` would reach."""

    def __init__(self, jobs: ScriptedJobs, bundle: RendererBundle, answer: Callable[[str], str]) -> None:
        """Answer requests for tokens with `answer(prompt)`."""
        super().__init__()
        self.sampled: list[list[SampleRequest]] = []
        """Every requested batch."""
        self._jobs = jobs
        self._sampler = ScriptedSampler(Renderer.from_bundle(bundle), answer)
        self._lock = threading.Lock()

    async def call(self, pool: PoolRecord, path: str, body: Bytes, params: Mapping[str, str]) -> bytes:
        """Answer one call about a job, or whether the pool can be sampled."""
        if path == "/prove":
            return PoolProof(sampled=True).model_dump_json().encode()
        return await to_thread.run_sync(self._call, path, bytes(body), params["job_id"])

    @asynccontextmanager
    async def stream(self, pool: PoolRecord, path: str, body: bytes) -> AsyncIterator[PoolStream]:
        """Answer a batch of requests for tokens."""
        lines = await to_thread.run_sync(self._sample, SampleBatch.model_validate_json(body))

        async def chunks() -> AsyncIterator[bytes]:
            yield lines

        yield PoolStream(chunks(), break_off=lambda: None)

    def answers(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Answer requests; a test may replace it."""
        answers: list[Completion | SampleFailure] = []
        self._sampler.submit(requests, answers.extend)
        return answers

    def _call(self, path: str, body: bytes, job_id: str) -> bytes:
        match path:
            case "/episodes/lease":
                reply = self._jobs.lease(job_id, LeaseRequest.model_validate_json(body))
                return reply.model_dump_json().encode()
            case "/episodes/submit":
                handed_in = self._jobs.submit(job_id, SubmitRequest.model_validate_json(body))
                return handed_in.model_dump_json().encode()
            case "/episodes/vanished":
                self._jobs.vanished(job_id, LeaseRequest.model_validate_json(body).worker_id)
        return b""

    def _sample(self, batch: SampleBatch) -> bytes:
        self.sampled.append(batch.requests)
        known = [
            request
            if request.policy_version is not None
            else request.model_copy(update={"policy_version": self._jobs.newest_version(request.policy)})
            for request in batch.requests
        ]
        with self._lock:  # As in an engine, the script answers one batch at a time.
            answers = self.answers(known)
        streamed = {request.request_id for request in batch.requests if request.stream}
        lines = [
            part.model_dump_json(exclude_none=True)
            for answer in answers
            if isinstance(answer, Completion) and answer.request_id in streamed
            for part in parts_of(answer)
        ]
        lines += [answer.model_dump_json(exclude_none=True) for answer in answers]
        return "".join(f"{line}\n" for line in lines).encode()
