"""From a request to the message that the vLLM process understands, and from its answer to a completion.

Pure: knows neither the process nor which requests are open. What vLLM would do differently than asked is
refused here, before it is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.catalog.models import ModelFacts
from backend.engines.failures import (
    failure,
    images_refused,
    stops_refused,
    structure_impossible,
    structure_unusable,
    version_gone,
)
from backend.engines.vllm.image_files import HandedImages
from backend.engines.vllm.process import Message
from backend.engines.vllm.settings import has_tokenizer
from backend.processes.exhaustion import OUT_OF_MEMORY, says_out_of_memory
from backend.settings.served_models import VLLM_LEAST_TEMPERATURE
from tinkergym.errors import InternalServiceError, InvalidRequestError, PromptTooLongError, TinkerGymError
from tinkergym.schema.sampling import Completion, CompletionPart, PromptScores, SampleFailure, SampleRequest
from tinkergym.schema.structured import Regex

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestMessages:
    """Translates the requests to one model."""

    facts: ModelFacts
    images: HandedImages | None
    """None refuses images."""

    def read_images(self, requests: Sequence[SampleRequest]) -> None:
        """Read images ahead, without a lock; `refusal` reports failures."""
        for request in requests:
            if self.images is not None and request.images:
                self.images.refusal(request)

    def message(self, request: SampleRequest, key: int) -> Message:
        """Return the message for a request that `refusal` accepts; `key` is its policy's."""
        vocabulary = self.facts.vocabulary_size
        return {
            "policy": key,
            "prompt": list(request.prompt_ids),
            "max_tokens": min(request.max_tokens, self.facts.context_length - len(request.prompt_ids)),
            "temperature": request.temperature,
            "top_p": request.top_p,
            # vLLM uses signed 64-bit integers.
            "top_k": min(request.top_k, vocabulary),
            "seed": request.seed,
            "stop": self._stops(request),
            "structured": _structure(request),
            "stop_strings": list(request.stop),
            "top_logprobs": min(request.top_logprobs, vocabulary),
            "prompt_logprobs": min(request.top_prompt_logprobs, vocabulary)
            if request.prompt_logprobs
            else None,
            "stream": request.stream,
            # Prefixes are cached per policy version, whose states differ, and per tenant: how long a prompt
            # takes would tell one tenant what another has sent.
            "salt": f"{key} {request.seat.owner}",
            "images": self.images.message(request.images) if self.images and request.images else [],
        }

    def refusal(self, request: SampleRequest) -> TinkerGymError | None:
        """Return why vLLM cannot compute a request as asked, if so."""
        if len(request.prompt_ids) >= self.facts.context_length:
            return PromptTooLongError(
                f"a prompt of {len(request.prompt_ids)} tokens fills the context of "
                f"{self.facts.context_length}",
                hint="leave room for at least one completion token",
                field="prompt_ids",
            )
        vocabulary = self.facts.vocabulary_size
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
            return InvalidRequestError(
                f"the prompt contains a token id outside [0, {vocabulary})",
                hint="was it encoded with another model's tokenizer?",
                field="prompt_ids",
            )
        refused = images_refused(request) if self.images is None else self.images.refusal(request)
        if refused is not None:
            return refused
        if 0 < request.temperature < VLLM_LEAST_TEMPERATURE:
            return InvalidRequestError(
                f"vLLM does not support temperature {request.temperature}",
                hint=f"use 0, or at least {VLLM_LEAST_TEMPERATURE}",
                field="temperature",
            )
        return stops_refused(request, self.facts.directory) or structure_impossible(
            request,
            model=str(self.facts.directory),
            has_tokenizer=has_tokenizer(self.facts.directory),
            has_stop=bool(self._stops(request)),
        )

    def _stops(self, request: SampleRequest) -> list[int]:
        return [token for token in request.stop_ids if 0 <= token < self.facts.vocabulary_size]


def completion(request: SampleRequest, answer: Message) -> Completion | SampleFailure:
    """Return what an answer of the process, or of the engine itself, means for the sender."""
    if "refused" in answer:
        return failure(request, answer["refused"])
    if "gone" in answer:
        return failure(request, version_gone(request))
    if "invalid" in answer:
        return failure(request, structure_unusable(request, answer["invalid"]))
    if "error" in answer:
        code = OUT_OF_MEMORY if says_out_of_memory(answer["error"]) else ""
        return failure(request, InternalServiceError(f"vLLM failed: {answer['error']}", code=code))
    logprobs, of_prompt = answer["logprobs"], answer.get("prompt_logprobs")
    # NaN fails both comparisons, and rounding may lift a logprob slightly above 0. The first token of a
    # prompt has none.
    if not all(-1e30 < logprob <= 1e-3 for logprob in (*logprobs, *(of_prompt or [])[1:])):
        return failure(
            request,
            InternalServiceError(
                f"policy {request.policy!r} at version {request.policy_version} does not produce "
                f"finite logits",
                hint="the policy diverged; lower the learning rate and resume from a checkpoint",
            ),
        )
    return Completion(
        request_id=request.request_id,
        token_ids=answer["tokens"],
        sampling_logprobs=logprobs,
        finish_reason="stop" if answer["reason"] == "stop" else "length",
        policy_version=request.policy_version or 0,
        text=answer.get("text"),
        top_logprobs=answer.get("top_logprobs"),
        **_of_prompt(answer),
    )


def completion_part(request: SampleRequest, part: Message) -> CompletionPart:
    """Return tokens of an unfinished request; its completion is checked."""
    return CompletionPart.model_construct(
        request_id=request.request_id,
        start=part["start"],
        token_ids=part["tokens"],
        sampling_logprobs=part["logprobs"],
        policy_version=request.policy_version or 0,
        top_logprobs=_pairs(part.get("top_logprobs")),
        **_of_prompt(part),
    )


def _of_prompt(answer: Message) -> dict[str, Any]:
    found = {name: answer.get(name) for name in PromptScores.model_fields}
    return {**found, "top_prompt_logprobs": _pairs(found["top_prompt_logprobs"])}


def _pairs(rows: list[Any] | None) -> list[Any] | None:
    # Pairs were lists on the way here.
    return rows and [row and [tuple(pair) for pair in row] for row in rows]


def batch_completions(
    requests: Sequence[SampleRequest],
    messages: Mapping[int, Message],
    refused: Mapping[int, SampleFailure],
    found: Message,
    *,
    dropped: Collection[int],
) -> list[Completion | SampleFailure]:
    """Return what an answer means for the senders of requests that were computed together.

    Args:
        requests: All requests, in order.
        messages: What the process was sent, by index into `requests`.
        refused: The answers to the others, by index.
        found: The answer of the process.
        dropped: Keys of policies that were removed in the meantime.
    """
    several = found.get("answers", [found] * len(messages))
    answers: dict[int, Completion | SampleFailure] = {**refused}
    try:
        for (place, message), answer in zip(messages.items(), several, strict=True):
            gone = message["policy"] in dropped
            answers[place] = completion(requests[place], {"gone": True} if gone else answer)
    except Exception as error:
        _log.exception("vLLM's answer to %d requests cannot be read", len(messages))
        unreadable = InternalServiceError(f"vLLM's answer cannot be read: {error!r}")
        return [failure(request, unreadable) for request in requests]
    return [answers[place] for place in range(len(requests))]


def _structure(request: SampleRequest) -> Message | None:
    if request.structured is None:
        return None
    if isinstance(request.structured, Regex):
        return {"regex": request.structured.pattern}
    return {"json": request.structured.json_schema}
