"""The body of `POST /completions`: a text, or token ids, to continue as they are."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tinkergym.openai_api.sampling_fields import MOST_CHOICES, ReplyFormat, SamplingFields
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.sampling import MOST_TOP_LOGPROBS
from tinkergym.schema.structured import JsonSchema, Regex
from tinkergym.trajectory.trajectory import MOST_TOKENS, TokenId

_Ids = Annotated[list[TokenId], Field(min_length=1, max_length=MOST_TOKENS)]


class TextRequest(SamplingFields):
    """Texts to continue, and how."""

    prompt: (
        str
        | _Ids
        | Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)]
        | Annotated[list[_Ids], Field(min_length=1, max_length=MOST_CHOICES)]
    )
    """A text, or token ids, or several of either. Special tokens may be written out in a text."""
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """The longest completion; by default the rest of the model's context."""
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP_LOGPROBS)
    """At each sampled token, and with `echo` at each of the prompt, return the logprobs of this many of the
    likeliest tokens and its own."""
    echo: bool = False
    """Return the prompt before the completion."""
    response_format: ReplyFormat | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if len(self.prompts) * self.n > MOST_CHOICES:
            reason = f"times the number of prompts is more than the limit of {MOST_CHOICES}"
            raise Refusal("n", reason, "use several requests", "too_many").in_validator()
        if self.structured_outputs is not None and self.response_format is not None:
            hint = "leave one of them out"
            raise Refusal("structured_outputs", "excludes response_format", hint, "not_one").in_validator()
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        is_one = isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt  # type: ignore[list-item,return-value]

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether the engine must compute them, to return them or a part of them."""
        return self.wants_prompt_logprobs or (self.echo and self.logprobs is not None)

    @property
    def needs_top_prompt_logprobs(self) -> int:
        """How many of the likeliest tokens the engine must return in the place of each of the prompt's."""
        return max(self.top_prompt_logprobs, self.logprobs or 0 if self.echo else 0)

    @property
    def structured(self) -> Regex | JsonSchema | None:
        """What constrains the completion."""
        if self.structured_outputs is not None:
            return self.structured_outputs.structured
        return None if self.response_format is None else self.response_format.structured
