"""Requests on their way into a scheduler: their policy versions, their images, and why some are refused."""

from __future__ import annotations

from collections.abc import Sequence

from backend.catalog.models import ModelFacts
from backend.engines.failures import failure, images_refused, stops_refused, structure_refused, version_gone
from backend.engines.transformers.loaded_policies import LoadedPolicy
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_state import RequestState
from tinkergym.agent.sampler import Deliver
from tinkergym.agent.stop_strings import stops_of
from tinkergym.errors import InvalidRequestError, PromptTooLongError, TinkerGymError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

Taken = list[tuple[SampleRequest, LoadedPolicy | None]]
"""Requests, each with its policy if that is loaded."""


class RequestIntake:
    """A version that `take` keeps for a request is left once: when it is refused, or by `left`."""

    def __init__(self, facts: ModelFacts, model: PackedModel) -> None:
        self._facts, self._model = facts, model

    def read_images(self, requests: Sequence[SampleRequest]) -> None:
        """Read images in the caller's thread, while the engine computes; failures are reported later."""
        if self._model.images is not None:
            for request in requests:
                if request.images:
                    self._model.images.refusal(request)

    def take(self, requests: Sequence[SampleRequest]) -> Taken:
        """Determine which version answers each request."""
        policies = self._model.policies
        return [(request, policies.take(request.policy, request.policy_version)) for request in requests]

    def left(self, states: list[RequestState]) -> list[RequestState]:
        """Release the versions of answered requests."""
        for state in states:
            self._model.policies.leave(state.policy)
        return states

    def states(
        self, taken: Taken, deliver: Deliver
    ) -> tuple[list[RequestState], list[Completion | SampleFailure]]:
        """Return the states of taken requests, and the answers of those that are refused."""
        states: list[RequestState] = []
        refused: list[Completion | SampleFailure] = []
        for request, policy in taken:
            error = self._refusal(request) if policy is not None else version_gone(request)
            if policy is None or error is not None:
                refused.append(failure(request, error or version_gone(request)))
                if policy is not None:
                    self._model.policies.leave(policy)
                continue
            limit = min(len(request.prompt_ids) + request.max_tokens, self._facts.context_length)
            stops = stops_of(request, self._facts.directory)
            states.append(
                RequestState(
                    request=request,
                    policy=policy,
                    deliver=deliver,
                    limit=limit,
                    stop_strings=stops,
                    tokens=self._tokens(request),
                )
            )
        return states, refused

    def _refusal(self, request: SampleRequest) -> TinkerGymError | None:
        context = self._facts.context_length
        if len(request.prompt_ids) >= context:
            return PromptTooLongError(
                f"a prompt of {len(request.prompt_ids)} tokens fills the context of {context}",
                hint="leave room for at least one completion token",
                field="prompt_ids",
            )
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._model.vocabulary:
            return InvalidRequestError(
                f"the prompt contains a token id outside [0, {self._model.vocabulary})",
                hint="was it encoded with another model's tokenizer?",
                field="prompt_ids",
            )
        return (
            self._images_refused(request)
            or stops_refused(request, self._facts.directory)
            or structure_refused(request, "transformers")
        )

    def _images_refused(self, request: SampleRequest) -> TinkerGymError | None:
        if self._model.images is None:
            return images_refused(request)
        return self._model.images.refusal(request)

    def _tokens(self, request: SampleRequest) -> list[int]:
        if self._model.images is None or not request.images:
            return list(request.prompt_ids)
        return self._model.images.placed(request)
