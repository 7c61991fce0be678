"""Decoding: how a policy samples its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import Field, ValidationError, field_validator, model_validator

from tinkergym.schema.jobs.parts import LEAST_TEMPERATURE, MOST_TEMPERATURE
from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.refusals import Refusal, explain
from tinkergym.schema.structured import Structured

StopString = Annotated[str, Field(min_length=1, max_length=200)]


class CompletionSettings(WireModel):
    """From what a completion's tokens are drawn, and where it ends.

    By default from the model's whole distribution at temperature 1. Returned logprobs are those of the
    distribution that was drawn from, so jobs train only on the whole one.
    """

    temperature: float = Field(1.0, ge=0, le=MOST_TEMPERATURE)
    """0 takes the likeliest token, whatever `top_p` and `top_k`; its logprobs are then those of temperature
    1, of the whole distribution. Otherwise at least 0.001."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep only the smallest set of likeliest tokens with this total probability, after `top_k`; 1 keeps
    all."""
    top_k: int = Field(0, ge=0)
    """Keep only this many of the likeliest tokens; 0 keeps all. Of equally likely ones, lower ids come
    first."""
    structured: Structured | None = None
    """Constrains the completion. Needs `engine="vllm"`, and is refused in training. See
    `docs/operating/engines.md`."""

    stop: tuple[StopString, ...] = Field((), max_length=16)
    """The completion ends with the token that completes the first of these texts, or with a stop token. The
    token ids stay as they were sampled; `Completion.text` and a policy's action end before the text."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_text_is_enough(cls, stop: object) -> object:
        return (stop,) if isinstance(stop, str) else stop

    @property
    def is_cut(self) -> bool:
        """Whether `top_p` or `top_k` excludes some tokens."""
        return self.top_p < 1 or self.top_k > 0

    @model_validator(mode="after")
    def _has_a_temperature_to_divide_by(self) -> Self:
        if 0 < self.temperature < LEAST_TEMPERATURE:
            hint = f"use 0 for the likeliest token, or at least {LEAST_TEMPERATURE}"
            raise Refusal("temperature", "is too small to divide by", hint, "too_small").in_validator()
        return self


class DecodingOptions(TypedDict, total=False):
    """The fields of `Decoding` as keyword arguments of a call; None is the same as left out."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    structured: Structured | None
    stop: str | Sequence[str] | None
    max_turn_tokens: int | None


class SeededOptions(DecodingOptions, total=False):
    """`DecodingOptions` with the seed of the policy's actions."""

    seed: int | None


class Decoding(CompletionSettings, Choice):
    """How a policy samples the completions of an episode."""

    max_turn_tokens: int = Field(64, ge=1)
    """The longest completion."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Makes the completions repeatable: turn k of an episode samples with `seed + k`."""

    def with_options(self, **options: Unpack[SeededOptions]) -> Self:
        """Return these settings with others in place of some.

        Raises:
            InvalidRequestError: An option is unknown or out of range; its name is in `field`.
        """
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return type(self).model_validate({**self.model_dump(), **given})
        except ValidationError as error:
            raise explain(error, type(self)) from None


AS_THE_MODEL = Decoding()
"""The defaults."""
