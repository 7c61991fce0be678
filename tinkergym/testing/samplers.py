"""Samplers without a model: answers from a function, or random tokens. They respond at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Deliver, deliver_parts
from tinkergym.agent.stop_strings import stopped_text
from tinkergym.schema.sampling import Completion, CompletionPart, SampleRequest


class ScriptedSampler:
    """Answers with the text that a function returns for the prompt's text, with probability 1 (logprob 0).

    Example:
        >>> ScriptedSampler(renderer, lambda prompt: "4" if "2+2" in prompt else "?")
    """

    def __init__(self, renderer: Renderer, answer: Callable[[str], str]) -> None:
        """Answer with `answer(prompt)`; the prompt is the whole conversation as the template renders it."""
        self._renderer = renderer
        self._answer = answer

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Answer all requests before returning."""
        deliver([self._complete(request) for request in requests])

    def close(self) -> None:
        """Do nothing."""

    def _complete(self, request: SampleRequest) -> Completion:
        ids = self._renderer.encode_answer(self._answer(self._renderer.decode(request.prompt_ids)))
        kept = ids[: request.max_tokens]
        stops = self._renderer.stop_strings(request.stop) if request.stop else None
        if stops is not None:
            end = next((place for place, token in enumerate(kept) if stops.completed_by(token)), None)
            if end is not None:
                ids = kept = kept[: end + 1]
        behind = request.prompt_ids[1:]
        return Completion(
            request_id=request.request_id,
            token_ids=kept,
            sampling_logprobs=[0.0] * len(kept),
            finish_reason="stop" if len(kept) == len(ids) else "length",
            policy_version=request.policy_version or 0,
            text=None if stops is None else stopped_text(stops, kept, request.stop_ids),
            top_logprobs=[[(token, 0.0)] for token in kept] if request.top_logprobs else None,
            prompt_logprobs=[None, *[0.0] * len(behind)] if request.prompt_logprobs else None,
            prompt_ranks=[None, *[1] * len(behind)] if request.prompt_logprobs else None,
            top_prompt_logprobs=[None, *[[(token, 0.0)] for token in behind]]
            if request.top_prompt_logprobs
            else None,
        )


class RandomTokenSampler:
    """Answers with tokens drawn uniformly from the vocabulary; a function of the request's seed alone."""

    def __init__(self, vocab_size: int) -> None:
        """Draw from the ids below `vocab_size`."""
        self._vocab_size = vocab_size

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Answer all requests before returning."""
        found = [self._complete(request) for request in requests]
        for request, whole in zip(requests, found, strict=True):
            if request.stream:
                deliver_parts(deliver, parts_of(whole))
        deliver(found)

    def close(self) -> None:
        """Do nothing."""

    def _complete(self, request: SampleRequest) -> Completion:
        drawn = (
            np.random.default_rng(request.seed).integers(self._vocab_size, size=request.max_tokens).tolist()
        )
        end = next((i + 1 for i, token in enumerate(drawn) if token in request.stop_ids), None)
        token_ids = drawn[:end]
        return Completion(
            request_id=request.request_id,
            token_ids=token_ids,
            sampling_logprobs=[-math.log(self._vocab_size)] * len(token_ids),
            finish_reason="length" if end is None else "stop",
            policy_version=request.policy_version or 0,
        )


def parts_of(whole: Completion) -> list[CompletionPart]:
    """Return a completion's tokens one by one, but not the last."""
    return [
        CompletionPart(
            request_id=whole.request_id,
            start=place,
            token_ids=[token],
            sampling_logprobs=whole.sampling_logprobs[place : place + 1],
            policy_version=whole.policy_version,
            top_logprobs=whole.top_logprobs and whole.top_logprobs[place : place + 1],
        )
        for place, token in enumerate(whole.token_ids[:-1])
    ]
