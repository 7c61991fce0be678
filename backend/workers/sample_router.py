"""Where each request for tokens is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from backend.admission.request_bounds import refuse_many_images
from backend.episodes.boards import Boards
from backend.workers.guest_models import ServedModel
from backend.workers.pool_images import PoolImages
from backend.workers.pool_jobs import PoolJobs
from backend.workers.shared_parts import SharedParts
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import SampleFailure, SampleRequest


class SampleRouter:
    """Sends requests to the engine of their policy's base model, or to the gate of their lockstep job.

    Each request is answered once. What a job trains on is sampled from the whole distribution, and in
    lockstep if the job is deterministic. A request for a version that is about to be published is kept.
    """

    def __init__(self, parts: SharedParts, jobs: PoolJobs, images: PoolImages) -> None:
        self._parts, self._jobs, self._images = parts, jobs, images

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver, *, together: bool) -> None:
        """Answer each request once through `deliver`; `together` waits for all, see `SampleBatch`."""
        by_model: dict[str, tuple[ServedModel, list[SampleRequest]]] = {}
        for request in requests:
            served = self._parts.guests.of_policy(request.policy) or self._parts.own
            by_model.setdefault(served.model, (served, []))[1].append(request)
        for served, some in by_model.values():
            self._sample(some, deliver, served, together=together)

    def _sample(
        self, requests: Sequence[SampleRequest], deliver: Deliver, served: ServedModel, *, together: bool
    ) -> None:
        """Answer requests for policies of one model."""
        answering = served.directory.answering(self._parts.captured.watching(deliver, requests))
        playing, gates = _Playing(self._parts.boards), self._jobs.gates
        refused: list[SampleFailure] = []
        ready: list[SampleRequest] = []
        for request in requests:
            lease_id = request.seat.lease
            # An opponent in a job's game may be of another job, or the model itself.
            job_id = served.directory.trained_by(request.policy) or playing.job_of(lease_id) or request.policy
            is_training = partial(playing.is_training, lease_id, job_id)
            try:
                self._refuse(request, job_id, is_training)
                resolved = served.directory.resolve_for(answering, request, is_training=is_training)
            except TinkerGymError as error:
                view = ErrorView.model_validate(error.to_wire())
                refused.append(SampleFailure(request_id=request.request_id, error=view))
                continue
            # Only the episodes of a job's own rollout are in lockstep, and their requests have a lease.
            if job_id in gates and is_training():
                # Without an owner: the gate itself adds the job's to what it samples.
                gates[job_id].submit([resolved.owned_by("")], answering)
                continue
            owned = self._with_owner(resolved, job_id)
            if not served.early.keep(owned, answering):
                ready.append(owned)
        for policy in {request.policy for request in requests}:
            trained_by = served.directory.trained_by(policy) or policy
            self._parts.boards.contact(trained_by)
            self._parts.bell.sampled(trained_by)
        if refused:
            answering(refused)
        if ready:
            submit = served.engine.submit_together if together else served.engine.submit
            submit(ready, answering)

    def _refuse(self, request: SampleRequest, job_id: str, is_training: Callable[[], bool]) -> None:
        """Refuse what the gateway cannot: one request of a batch, and what depends on its episode.

        Raises:
            InvalidRequestError: A training episode would have tokens of a truncated distribution, or the
                request has too many images.
            NotFoundError: The tenant does not have one of the images.
        """
        if (request.structured is not None or request.is_cut) and is_training():
            raise _truncated(request)
        if request.images:
            most = self._parts.config.limits.prompt_images
            refuse_many_images(len(request.images), most, field="images")
            tenant = request.seat.owner or self._tenant_of_episode(request.seat.lease, job_id)
            self._images.require(tenant, [image.sha256 for image in request.images])

    def _with_owner(self, request: SampleRequest, job_id: str) -> SampleRequest:
        """Put the job's tenant before the session, as the gateway does for external requests."""
        pulse = None if request.seat.owner else self._jobs.pulses.get(job_id)
        return request if pulse is None else request.owned_by(pulse.lease.tenant_id)

    def _tenant_of_episode(self, lease_id: str, job_id: str) -> str:
        """Return the tenant of an environment worker's episode."""
        for playing, pulse in list(self._jobs.pulses.items()):
            if playing == job_id or lease_id in self._parts.boards.playing(playing):
                return pulse.lease.tenant_id
        return ""


class _Playing:
    """The episodes that are being played; each answer is read once per batch."""

    def __init__(self, boards: Boards) -> None:
        self._leases = cache(lambda job_id: frozenset(boards.playing(job_id)))
        self._jobs = cache(boards.jobs_by_lease)

    def job_of(self, lease_id: str) -> str | None:
        return self._jobs().get(lease_id)

    def is_training(self, lease_id: str, job_id: str) -> bool:
        """Whether it is an episode that the job trains on."""
        return lease_id in self._leases(job_id)


def _truncated(request: SampleRequest) -> InvalidRequestError:
    if request.structured is not None:
        field, what = "structured", "structured answers"
    else:
        field = "top_p" if request.top_p < 1 else "top_k"
        what = f"answers drawn with {field}"
    return InvalidRequestError(
        f"a training episode cannot have {what}: their logprobs are those of a truncated distribution, "
        f"but the learner's are not",
        hint=f"leave out {field}; policy.act and policy.evaluate accept it",
        field=field,
    )
