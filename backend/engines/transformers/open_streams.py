"""Streams of an engine: tokens of completions that are still being sampled, delivered a few at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from backend.engines.transformers.request_state import RequestState
from tinkergym.agent.sampler import Deliver, deliver_parts
from tinkergym.schema.sampling import CompletionPart, PromptScores

_log = logging.getLogger(__name__)

_LEAST_SECONDS = 0.02
_MOST_SECONDS = 0.2
_SECONDS_PER_STREAM = 0.006
"""How long a stream waits between two deliveries: longer if there are many. The first token of each is
delivered at once. A delivery costs pool and gateway about a millisecond, most of it for HTTP, so that all of
them together take a sixth of a core until there are 33 streams."""


class OpenStreams:
    """The requests of an engine that are delivered in parts. Belongs to the engine's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[RequestState, int] = {}
        self._last = 0.0

    def __bool__(self) -> bool:
        return bool(self._sent)

    def add(self, states: Iterable[RequestState]) -> None:
        """Deliver those of these requests in parts that ask for it."""
        self._sent.update((state, 0) for state in states if state.request.stream)

    def deliver(self) -> None:
        """Deliver what was sampled since the last time, unless that is too recent."""
        for state in [state for state in self._sent if state.answer is not None]:
            del self._sent[state]  # The completion has the rest.
        now = self._clock()
        pause = min(_MOST_SECONDS, max(_LEAST_SECONDS, _SECONDS_PER_STREAM * len(self._sent)))
        is_due = now - self._last >= pause
        parts: dict[Deliver, list[CompletionPart]] = {}
        for state, sent in self._sent.items():
            if len(state.logprobs) > sent and (is_due or sent == 0):
                parts.setdefault(state.deliver, []).append(_part(state, sent))
                self._sent[state] = len(state.logprobs)
                for name in PromptScores.model_fields:
                    setattr(state, name, None)  # The completion does not repeat them.
        if is_due:
            self._last = now
        for deliver, some in parts.items():
            try:
                deliver_parts(deliver, some)
            except Exception:
                _log.exception(
                    "a callback for parts of %d completions failed; the engine continues", len(some)
                )


def _part(state: RequestState, start: int) -> CompletionPart:
    # Its values come from the engine, and are checked with the whole completion.
    return CompletionPart.model_construct(
        request_id=state.request.request_id,
        start=start,
        token_ids=state.tokens[len(state.request.prompt_ids) + start :],
        sampling_logprobs=state.logprobs[start:],
        policy_version=state.policy.version,
        top_logprobs=None if state.likeliest is None else state.likeliest[start:],
        **{name: getattr(state, name) for name in PromptScores.model_fields},
    )
