"""Requests for tokens and their completions."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.events import ErrorView
from tinkergym.schema.job_spec import LEAST_TEMPERATURE, MOST_TEMPERATURE
from tinkergym.schema.model import WireModel
from tinkergym.schema.structured import Structured
from tinkergym.trajectory.parts import MOST_PARTS, ImageSpan
from tinkergym.trajectory.trajectory import MOST_TOKENS

MOST_TOP_LOGPROBS = 20
MOST_EXTRA_LOGPROBS = 1_000_000
"""Of the requests of one batch, by `top_logprobs` and `prompt_logprobs`; so many are some 20 MB of JSON."""

Likeliest = Annotated[list[tuple[int, float]], Field(max_length=MOST_TOP_LOGPROBS)]
StopString = Annotated[str, Field(min_length=1, max_length=200)]


def seat_session(lease_id: str, seat: int) -> str:
    """Return the `session_id` of a seat's requests: with one seat the lease's id, or the episode's.

    The prompts of two seats have nothing in common, so each has a session of its own.
    """
    return f"{lease_id}.{seat}" if seat else lease_id


def lease_of_session(session_id: str) -> str:
    """Return the lease that a request belongs to, whoever's and whichever seat's it is."""
    return session_id.rpartition("/")[2].partition(".")[0]


class Cut(WireModel):
    """From which part of its distribution a token is drawn; as it stands, from all of it.

    The distribution is the one at the request's temperature. `top_k` comes first, then `top_p`, of what
    remains. The logprobs that come back are those of what remains at the end, so no job trains on them.
    """

    top_p: float = Field(1.0, gt=0, le=1)
    """Only the fewest likeliest tokens that have so much of the probability together; 1 is all."""
    top_k: int = Field(0, ge=0)
    """Only so many of the likeliest tokens; 0 is all. Of equally likely ones those with lower ids."""

    @property
    def is_cut(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_p < 1 or self.top_k > 0


class SampleRequest(Cut):
    """Tokens wanted after a prompt of token ids."""

    request_id: str = Field(min_length=1, max_length=200)
    policy: str
    """A policy's id, its job's id, or a model's name."""
    policy_version: int | None = None
    """None takes the newest published one; 0 is the policy before training; others need a checkpoint."""
    prompt_ids: list[int] = Field(min_length=1, max_length=MOST_TOKENS)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, ge=0, le=MOST_TEMPERATURE)
    """0 takes the likeliest token, whatever `top_p` and `top_k`; its logprobs are those of temperature 1, of
    the whole distribution. Else at least 0.001.
    """
    seed: int = Field(0, ge=0, lt=2**64)
    stop_ids: list[int] = Field([], max_length=1024)
    """Sampling ends with the first of these, which is part of the answer."""
    stop: tuple[StopString, ...] = Field((), max_length=16)
    """Sampling ends with the token that completes the first of these texts. The token ids stay as they were
    sampled; `Completion.text` is what stands before the text.
    """
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP_LOGPROBS)
    """Of how many of the likeliest tokens the logprobs come back, at each sampled token."""
    prompt_logprobs: bool = False
    """Whether the logprobs of the prompt's tokens come back. The prompt is then computed anew, whatever is in
    a cache.
    """
    session_id: str = ""
    """Requests of one episode share it, so that the next turn finds its cache; empty means no next turn."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """Where images stand in `prompt_ids`: spans of the model's placeholder token. The files are uploaded
    first, with `PUT /v1/images/{sha256}`. Models that take text only refuse them.
    """
    structured: Structured | None = None
    """What the completion must look like. Needs `engine="vllm"`, and is refused in training. See
    `docs/operating/engines.md`.
    """

    @property
    def extra_logprobs(self) -> int:
        """How many logprobs are wanted at most, besides those of the sampled tokens."""
        return self.top_logprobs * self.max_tokens + (len(self.prompt_ids) if self.prompt_logprobs else 0)

    @model_validator(mode="after")
    def _has_a_temperature_to_divide_by(self) -> Self:
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                "temperature is too small to divide by; "
                f"take 0 for the likeliest token, or at least {LEAST_TEMPERATURE}"
            )
        return self


class Completion(WireModel):
    """The tokens sampled for one request."""

    request_id: str
    token_ids: list[int] = Field(max_length=MOST_TOKENS)
    sampling_logprobs: list[float] = Field(max_length=MOST_TOKENS)
    """In nats, of the distribution that was drawn from: at the request's temperature, among what its `top_k`,
    `top_p` and `structured` leave. Same length as `token_ids`.
    """
    finish_reason: Literal["stop", "length"]
    """ "stop": a stop id or a stop string ended it; "length": a limit."""
    policy_version: int
    text: str | None = None
    """Where the request has `stop`: what the tokens say, up to the stop string or the stop id."""
    top_logprobs: list[Likeliest] | None = Field(None, max_length=MOST_TOKENS)
    """Where the request has `top_logprobs`: per sampled token the likeliest token ids with their logprobs,
    likeliest first, of the distribution that was drawn from. Fewer where `top_k`, `top_p` or `structured`
    leave fewer.
    """
    prompt_logprobs: list[float | None] | None = Field(None, max_length=MOST_TOKENS)
    """Where the request has `prompt_logprobs`: per prompt token its logprob after those before it, in nats,
    at temperature 1, of the whole distribution. None for the first, which nothing stands before.
    """


class SampleFailure(WireModel):
    """A request for tokens that was not fulfilled."""

    request_id: str
    error: ErrorView


class SampleBatch(WireModel):
    """The body of `POST /v1/sample`; answered by one JSON line per request, in the order they finish."""

    requests: list[SampleRequest] = Field(min_length=1, max_length=4096)
    together: bool = False
    """Sample those of one model as one batch that nothing else joins, without caches. The same batch then
    gives the same bits, whatever else the service does; other requests wait meanwhile.
    """
