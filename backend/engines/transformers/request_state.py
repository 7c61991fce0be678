"""The state of a request in the transformers engine: from the queue to its completion."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isfinite

from backend.engines.failures import deliver_to, failure
from backend.engines.token_sampling import TokenScores
from backend.engines.transformers.loaded_policies import LoadedPolicy
from backend.engines.transformers.slot_table import PromptKey, Slot
from tinkergym.agent.sampler import Deliver, has_gone
from tinkergym.agent.stop_strings import StopStrings, stopped_text
from tinkergym.errors import (
    InternalServiceError,
    TinkerGymError,
)
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest


@dataclass(eq=False, slots=True)
class RequestState:
    """A request that waits for a slot or is being processed."""

    request: SampleRequest
    policy: LoadedPolicy
    deliver: Deliver
    limit: int
    """Length of prompt and completion at which the completion is cut."""
    stop_strings: StopStrings | None = None
    """Detects the request's stop strings, if it has any."""
    tokens: list[int] = field(default_factory=list)
    """The prompt as compared by the engine, see `image_ids`, plus the sampled tokens; empty means the
    request's."""
    logprobs: list[float] = field(default_factory=list)
    path: Hashable = field(init=False)
    """Identifies its tokens: requests with equal paths have equal tokens. Initially the prompt's digest."""
    stops: frozenset[int] = field(init=False)
    cut: bool = field(init=False)
    """Whether its tokens are drawn from a truncated distribution."""
    likeliest: list[list[tuple[int, float]]] | None = field(init=False)
    """For each sampled token the most likely ones, if the request has `top_logprobs`."""
    prompt_logprobs: list[float | None] | None = field(init=False)
    """Computed so far, if the request wants them."""
    prompt_ranks: list[int | None] | None = field(init=False)
    top_prompt_logprobs: list[list[tuple[int, float]] | None] | None = field(init=False)
    prompt_entropies: list[float | None] | None = field(init=False)
    slot: Slot | None = None
    parked: Slot | None = None
    """Its slot before it was preempted; if no other request took it, the cache is still there."""
    turn: int = 0
    """The last forward that computed it."""
    owner: str = field(init=False)
    """The tenant. If the session does not name one, the policy is used to identify its job."""
    waits_for: RequestState | None = None
    """Another request with the same prompt that is being prefilled; its result is copied."""
    followers: list[RequestState] = field(default_factory=list)
    leads: PromptKey | None = None
    """The prompt it prefills for others, until that is done."""
    answer: Completion | SampleFailure | None = None

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt_ids)
        self.likeliest = [] if self.request.top_logprobs else None
        self.score_anew()
        if self.prompt_logprobs is None:
            self.path = blake2b(array("q", self.tokens).tobytes(), digest_size=16).digest()
        else:
            # Takes no results from others, because it needs the logits of its whole prompt.
            self.path = object()
        self.stops = frozenset(self.request.stop_ids)
        self.cut = self.request.is_cut
        self.owner = self.request.seat.owner or f"/{self.policy.name}"

    @property
    def place(self) -> Slot:
        """Its slot, if it has one."""
        assert self.slot is not None
        return self.slot

    @property
    def pending(self) -> int:
        """Tokens left to compute before the next one can be sampled."""
        pending = len(self.tokens) - self.place.cached
        # An empty span would get the logits of the previous one.
        assert pending > 0, "a sequence has nothing left to compute"
        return pending

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of its prompt are wanted and still missing."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.request.prompt_ids)

    @property
    def unwanted(self) -> bool:
        """Whether the requester is gone, so further tokens would be wasted."""
        return has_gone(self.deliver)

    def score_anew(self) -> None:
        """Forget what is computed of its prompt's scores."""
        request = self.request
        # Nothing predicts the first token.
        self.prompt_logprobs = [None] if request.prompt_logprobs else None
        self.prompt_ranks = [None] if request.prompt_logprobs else None
        self.top_prompt_logprobs = [None] if request.top_prompt_logprobs else None
        self.prompt_entropies = [None] if request.prompt_entropies else None

    def fail(self, error: TinkerGymError) -> None:
        """Answer with an error."""
        self.answer = failure(self.request, error)

    def finish(self, reason: str) -> None:
        """Answer with the sampled tokens."""
        token_ids, stops = self.tokens[len(self.request.prompt_ids) :], self.stop_strings
        self.answer = Completion(
            request_id=self.request.request_id,
            token_ids=token_ids,
            sampling_logprobs=self.logprobs,
            finish_reason="stop" if reason == "stop" else "length",
            policy_version=self.policy.version,
            text=None if stops is None else stopped_text(stops, token_ids, self.request.stop_ids),
            top_logprobs=self.likeliest,
            prompt_logprobs=self.prompt_logprobs,
            prompt_ranks=self.prompt_ranks,
            top_prompt_logprobs=self.top_prompt_logprobs,
            prompt_entropies=self.prompt_entropies,
        )

    def take_prompt_scores(self, scores: TokenScores) -> None:
        """Add the scores of the prompt's next tokens; what is beyond its end is ignored."""
        assert self.prompt_logprobs is not None and self.prompt_ranks is not None
        missing = scores[: len(self.request.prompt_ids) - len(self.prompt_logprobs)]
        if not all(map(isfinite, missing.logprobs)):
            self.fail(_diverged(self.policy))
            return
        self.prompt_logprobs += missing.logprobs
        self.prompt_ranks += missing.ranks
        if self.top_prompt_logprobs is not None:
            most = self.request.top_prompt_logprobs
            self.top_prompt_logprobs += [row[:most] for row in missing.likeliest]
        if self.prompt_entropies is not None:
            self.prompt_entropies += missing.entropies

    def take_token(self, token: int, logprob: float, path: Hashable) -> None:
        """Add a sampled token, and answer if it was the last.

        Args:
            token: Its id.
            logprob: In nats.
            path: The new path.
        """
        if not isfinite(logprob):
            self.fail(_diverged(self.policy))
            return
        self.tokens.append(token)
        self.path = path
        self.logprobs.append(logprob)
        if token in self.stops or (self.stop_strings and self.stop_strings.completed_by(token)):
            self.finish("stop")
        elif len(self.tokens) >= self.limit:
            self.finish("length")


def _diverged(policy: LoadedPolicy) -> InternalServiceError:
    return InternalServiceError(
        f"policy {policy.name!r} at version {policy.version} does not produce finite logits",
        hint="the policy diverged; lower the learning rate and resume from a checkpoint",
    )


def deliver_answered(states: Sequence[RequestState]) -> None:
    """Hand over the answers of requests, those of a caller together."""
    answers: dict[Deliver, list[Completion | SampleFailure]] = {}
    for state in states:
        assert state.answer is not None
        answers.setdefault(state.deliver, []).append(state.answer)
    for deliver, batch in answers.items():
        deliver_to(deliver, batch)
