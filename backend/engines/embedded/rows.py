"""Rows: the requests that an engine works on, and how they are answered."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isfinite

from backend.engines.embedded.policy_shelf import LoadedPolicy
from backend.engines.embedded.slot_table import PromptKey, Slot, split_session
from backend.engines.protocol import Deliver
from tinkergym.agent.stop_strings import StopStrings, stopped_text
from tinkergym.errors import (
    InternalServiceError,
    PolicyVersionGoneError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest


@dataclass(eq=False, slots=True)
class Row:
    """A request being worked on."""

    request: SampleRequest
    policy: LoadedPolicy
    deliver: Deliver
    limit: int
    """Tokens of prompt and answer together at which the answer is cut."""
    stop_strings: StopStrings | None = None
    """What watches for the request's stop strings, if it has any."""
    tokens: list[int] = field(default_factory=list)
    """The prompt as the engine compares it, see `image_ids`, and what was sampled; empty is the request's."""
    logprobs: list[float] = field(default_factory=list)
    path: Hashable = field(init=False)
    """Stands for its tokens: rows with the same one have the same. At first the prompt's digest."""
    stops: frozenset[int] = field(init=False)
    cut: bool = field(init=False)
    """Whether its tokens are drawn from a part of their distribution."""
    likeliest: list[list[tuple[int, float]]] | None = field(init=False)
    """Per sampled token the likeliest ones, if the request has `top_logprobs`."""
    prompt_logprobs: list[float | None] | None = field(init=False)
    """As far as they are computed, if the request wants them."""
    slot: Slot | None = None
    parked: Slot | None = None
    """Where it was before it was preempted; if no other request took the slot, its cache is still there."""
    turn: int = 0
    """The forward that last computed it."""
    owner: str = field(init=False)
    """The tenant who asks. Without one in the session, the policy stands for its job."""
    waits_for: Row | None = None
    """Another row with the same prompt that is being prefilled; its result is copied."""
    followers: list[Row] = field(default_factory=list)
    leads: PromptKey | None = None
    """The prompt that it prefills for others, until that is done."""
    answer: Completion | SampleFailure | None = None

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt_ids)
        self.likeliest = [] if self.request.top_logprobs else None
        self.prompt_logprobs = [None] if self.request.prompt_logprobs else None
        if self.prompt_logprobs is None:
            self.path = blake2b(array("q", self.tokens).tobytes(), digest_size=16).digest()
        else:
            # Takes over nothing that others compute, since it needs the logits of its whole prompt.
            self.path = object()
        self.stops = frozenset(self.request.stop_ids)
        self.cut = self.request.is_cut
        self.owner = split_session(self.request.session_id)[0] or f"/{self.policy.name}"

    @property
    def place(self) -> Slot:
        """Its slot, while it has one."""
        assert self.slot is not None
        return self.slot

    @property
    def pending(self) -> int:
        """Tokens that are left to compute before the next one can be sampled."""
        pending = len(self.tokens) - self.place.cached
        # A span without tokens would be given the logits of the one before it.
        assert pending > 0, "a sequence has nothing left to compute"
        return pending

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of its prompt are wanted and still missing."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.request.prompt_ids)

    @property
    def unwanted(self) -> bool:
        """Whether whoever asked is gone, so that every further token is work for nobody."""
        return bool(getattr(self.deliver, "gone", False))

    def fail(self, error: TinkerGymError) -> None:
        """Answer with an error."""
        self.answer = failure(self.request, error)

    def finish(self, reason: str) -> None:
        """Answer with what was sampled."""
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
        )

    def take_prompt_logprobs(self, logprobs: list[float]) -> None:
        """Add logprobs of the prompt's next tokens; those beyond it are left out."""
        assert self.prompt_logprobs is not None
        missing = logprobs[: len(self.request.prompt_ids) - len(self.prompt_logprobs)]
        if all(map(isfinite, missing)):
            self.prompt_logprobs.extend(missing)
        else:
            self.fail(_diverged(self.policy))

    def take_token(self, token: int, logprob: float, path: Hashable) -> None:
        """Add a sampled token, and answer if it was the last one.

        Args:
            token: Its id.
            logprob: In nats.
            path: From now on.
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
        f"policy {policy.name!r} at version {policy.version} gives no finite logits",
        hint="the policy diverged; lower the learning rate and resume from a checkpoint",
    )


def failure(request: SampleRequest, error: TinkerGymError) -> SampleFailure:
    """Answer a request with an error."""
    return SampleFailure(request_id=request.request_id, error=ErrorView(**error.to_wire()))


def version_gone(request: SampleRequest) -> PolicyVersionGoneError:
    """Say that the request's policy version is not loaded."""
    return PolicyVersionGoneError(
        f"policy {request.policy!r} at version {request.policy_version} is not loaded in the engine",
        hint="a newer version was published, or the policy was retired; ask for the newest version",
    )


def nobody_waits(request: SampleRequest) -> ServiceUnavailableError:
    """Say that the request was given up because its sender is gone."""
    return ServiceUnavailableError(
        f"nobody waits for the answer to {request.request_id!r} any more", hint="ask again"
    )
