"""Sampling requests and their completions, and those of an inference job's rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from tinkergym.schema.decoding import CompletionSettings
from tinkergym.schema.events import ErrorView
from tinkergym.schema.ids import SeatRef
from tinkergym.schema.model import WireModel
from tinkergym.schema.uploaded_data import PromptNote
from tinkergym.trajectory.content_parts import MOST_PARTS, ImageSpan
from tinkergym.trajectory.trajectory import MOST_TOKENS, Logprob, TokenId

MOST_TOP_LOGPROBS = 20
MOST_EXTRA_LOGPROBS = 1_000_000
"""The most logprobs of the requests in one batch, for `top_logprobs` and `prompt_logprobs`: about 20 MB of
JSON."""

BEYOND_RATE = "beyond_rate"
"""The code of the error for a batch that may take more tokens than its key can owe; smaller ones pass."""

Likeliest = Annotated[list[tuple[TokenId, Logprob]], Field(max_length=MOST_TOP_LOGPROBS)]


# Router, engine and recorder ask for it, at each turn of an episode.
_seat_of = lru_cache(maxsize=4096)(SeatRef.parse)


class SampleRequest(CompletionSettings):
    """Request tokens after a prompt of token ids."""

    request_id: str = Field(min_length=1, max_length=200)
    policy: str
    """A policy's id, its job's id, or a model's name."""
    policy_version: int | None = Field(None, ge=0)
    """None uses the newest published version; 0 is the policy before training; others need a checkpoint."""
    prompt_ids: list[TokenId] = Field(min_length=1, max_length=MOST_TOKENS)
    max_tokens: int = Field(ge=1)
    seed: int = Field(0, ge=0, lt=2**64)
    stop_ids: list[TokenId] = Field([], max_length=1024)
    """Sampling ends with the first of these, which is part of the completion."""
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP_LOGPROBS)
    """At each sampled token, return the logprobs of this many of the likeliest tokens."""
    prompt_logprobs: bool = False
    """Return the logprobs of the prompt's tokens. The prompt is then recomputed without a cache."""
    top_prompt_logprobs: int = Field(0, ge=0, le=MOST_TOP_LOGPROBS)
    """With `prompt_logprobs`, at each token of the prompt also return the logprobs of this many of the
    likeliest tokens."""
    prompt_entropies: bool = False
    """With `prompt_logprobs`, also return the entropies of the distributions that they are from. Only the
    engine `transformers` has them; the completions of others have None."""
    session_id: str = ""
    """Shared by the requests of one episode, so the next turn finds its cache; empty means no next turn."""
    stream: bool = False
    """Also return the tokens while they are being sampled, as `CompletionPart`s. The completion follows, with
    all of them; the prompt's scores come once, with the first. Some requests get no parts, such as those of
    a batch with `together`."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """Where images are in `prompt_ids`: spans of the model's placeholder token. Upload the files first with
    `PUT /v1/images/{sha256}`. Text-only models refuse images."""

    @model_validator(mode="after")
    def _has_logprobs_with_entropies(self) -> Self:
        for of_prompt in ("prompt_entropies", "top_prompt_logprobs"):
            self._refuse_idle(of_prompt, not self.prompt_logprobs, "prompt_logprobs=true")
        return self

    @property
    def seat(self) -> SeatRef:
        """Whose session it is, and the lease of the episode that it belongs to."""
        return _seat_of(self.session_id)

    def owned_by(self, tenant: str) -> Self:
        """Return the same request of this owner; empty removes the owner."""
        return self.model_copy(update={"session_id": str(replace(self.seat, owner=tenant))})

    @property
    def extra_logprobs(self) -> int:
        """The most logprobs requested, besides those of the sampled tokens."""
        of_each = self.prompt_logprobs + self.prompt_entropies + self.top_prompt_logprobs
        return self.top_logprobs * self.max_tokens + of_each * len(self.prompt_ids)


class PromptScores(WireModel):
    """What a request with `prompt_logprobs` learns about its prompt. The first token has None everywhere."""

    prompt_logprobs: list[Logprob | None] | None = Field(None, max_length=MOST_TOKENS)
    """Per prompt token its logprob given those before it, in nats, at temperature 1, of the whole
    distribution."""
    prompt_ranks: list[int | None] | None = Field(None, max_length=MOST_TOKENS)
    """Per prompt token its place among all tokens by probability, from 1."""
    top_prompt_logprobs: list[Likeliest | None] | None = Field(None, max_length=MOST_TOKENS)
    """Set if the request has `top_prompt_logprobs`: per prompt token the likeliest token ids in its place
    with their logprobs, likeliest first, of the same distribution."""


class Completion(PromptScores):
    """The tokens sampled for one request."""

    request_id: str
    token_ids: list[TokenId] = Field(max_length=MOST_TOKENS)
    sampling_logprobs: list[Logprob] = Field(max_length=MOST_TOKENS)
    """In nats, of the distribution that was drawn from: at the request's temperature, restricted by its
    `top_k`, `top_p` and `structured`. Same length as `token_ids`."""
    finish_reason: Literal["stop", "length"]
    """"stop": ended by a stop id or a stop string; "length": ended by a limit."""
    policy_version: int
    text: str | None = None
    """The text up to the stop string or the stop id. The service sets it if the request has `stop`; `sample`
    of a `TrainingPolicy` always does."""
    top_logprobs: list[Likeliest] | None = Field(None, max_length=MOST_TOKENS)
    """Set if the request has `top_logprobs`: per sampled token the likeliest token ids with their logprobs,
    likeliest first, of the distribution that was drawn from. Fewer if `top_k`, `top_p` or `structured` leave
    fewer."""
    prompt_entropies: list[FiniteFloat | None] | None = Field(None, max_length=MOST_TOKENS)
    """Set if the request has `prompt_entropies` and the engine has them: of the distributions of
    `prompt_logprobs`, in nats. None for the first token."""


class CompletionPart(PromptScores):
    """Some of the tokens of an unfinished completion; only the first part has the prompt's scores."""

    request_id: str
    start: int
    """How many of its tokens precede them."""
    token_ids: list[TokenId] = Field(max_length=MOST_TOKENS)
    sampling_logprobs: list[Logprob] = Field(max_length=MOST_TOKENS)
    policy_version: int
    top_logprobs: list[Likeliest] | None = Field(None, max_length=MOST_TOKENS)
    """As in `Completion`."""

    @staticmethod
    def is_in(line: bytes) -> bool:
        """Whether a line of a response is one; it is faster than to parse it."""
        return b'"start":' in line  # Within a text, JSON would escape the quotes.


class SampleFailure(WireModel):
    """A sampling request that failed."""

    request_id: str
    error: ErrorView


def read_answer(line: bytes) -> Completion | SampleFailure:
    """Read a line of the response to a `SampleBatch`.

    Raises:
        ValidationError: It is neither.
    """
    try:
        return Completion.model_validate_json(line)  # nearly every line; faster than to look first
    except ValidationError:
        return SampleFailure.model_validate_json(line)


class SampleBatch(WireModel):
    """The body of `POST /v1/sample`. The response has one JSON line per request, in order of completion.

    Requests with `stream` have further lines before that one.
    """

    requests: list[SampleRequest] = Field(min_length=1, max_length=4096)
    together: bool = False
    """Sample the requests of one model as one separate batch without caches. The same batch then gives the
    same bits, whatever else the service does. A tenant's batches are sampled one after the other, in turns
    with all other requests."""


class SampledRow(WireModel):
    """One completion of a row, or why there is none."""

    token_ids: list[TokenId] = Field([], max_length=MOST_TOKENS)
    logprobs: list[Logprob] | None = Field(None, max_length=MOST_TOKENS)
    """Set if the job has `logprobs`."""
    finish_reason: Literal["stop", "length"] | None = None
    """None for a row that failed."""
    policy_version: int = 0
    text: str | None = None
    """Up to the stop string or the stop id, if the job has stop strings."""
    error: ErrorView | None = None


class RowResult(WireModel):
    """The completions of a row; a line of the response to `GET /v1/jobs/{job_id}/results`."""

    row: int
    prompt_tokens: int
    note: PromptNote
    samples: list[SampledRow] = Field(max_length=1024)
