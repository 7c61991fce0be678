"""The fields that requests for chat and text completions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, StrictBool, model_validator

from tinkergym.schema.decoding import StopString
from tinkergym.schema.jobs.parts import MOST_TEMPERATURE
from tinkergym.schema.model import UserSettings
from tinkergym.schema.refusals import Refusal, no_effect
from tinkergym.schema.sampling import MOST_TOP_LOGPROBS
from tinkergym.schema.structured import JsonSchema, Regex

MOST_CHOICES = 128
"""The most completions of one request."""

_REFUSED: dict[str, tuple[object, str]] = {
    "frequency_penalty": (0, "would change the distribution that the policy was trained with"),
    "presence_penalty": (0, "would change the distribution that the policy was trained with"),
    "repetition_penalty": (1, "would change the distribution that the policy was trained with"),
    "logit_bias": ({}, "would change the distribution that the policy was trained with"),
    "min_p": (0, "is not supported; use top_p or top_k"),
    "best_of": (1, "is not supported; use n, and choose among the completions yourself"),
    "suffix": ("", "is not supported: policies complete at the end"),
    "audio": (None, "is not supported: models read and write text"),
    "modalities": (["text"], "is not supported: models write text"),
    "prediction": (None, "is not supported"),
    "functions": ([], "is not supported; use tools"),
    "function_call": (None, "is not supported; use tool_choice"),
    "web_search_options": (None, "is not supported: the service calls no tools itself"),
    "background": (False, "is not supported: nothing is stored"),
    "conversation": (None, "is not supported: nothing is stored; send the whole conversation"),
    "previous_response_id": (None, "is not supported: nothing is stored; send the whole conversation"),
    "prompt": (None, "is not supported: the service stores no prompts"),
    "guided_json": (None, "is not supported; use response_format or structured_outputs"),
    "guided_regex": (None, "is not supported; use structured_outputs={'regex': ...}"),
}
"""What cannot take effect: its neutral value, and why. A request's own field of that name counts."""

_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""What only concerns OpenAI's own service, and is ignored."""


class StreamOptions(UserSettings):
    """What a stream contains besides the completion."""

    include_usage: bool = False
    """The last event has the numbers of tokens, and no choice."""
    include_obfuscation: bool = False
    """Ignored: a stream has no padding."""


class SchemaOfReply(UserSettings):
    """A JSON schema with its name."""

    name: str = ""
    description: str | None = None
    json_schema: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None


class ReplyFormat(UserSettings):
    """The format of the completion, `response_format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: SchemaOfReply | None = None

    @property
    def structured(self) -> JsonSchema | None:
        """What constrains the completion; None for text."""
        if self.type == "text":
            return None
        schema = self.json_schema.json_schema if self.json_schema is not None else None
        return JsonSchema(json_schema=schema or {"type": "object"})


class StructuredOutputs(UserSettings):
    """vLLM's field of this name: exactly one of a regular expression and a JSON schema."""

    regex: str | None = Field(None, min_length=1, max_length=4096)
    json_schema: dict[str, JsonValue] | None = Field(None, alias="json")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.regex is None) == (self.json_schema is None):
            reason = "must have either 'regex' or 'json'"
            raise Refusal("", reason, "choose one", "not_one").in_validator()
        return self

    @property
    def structured(self) -> Regex | JsonSchema:
        """What constrains the completion."""
        if self.regex is not None:
            return Regex(pattern=self.regex)
        return JsonSchema(json_schema=self.json_schema or {})


class SamplingFields(UserSettings):
    """The fields that chat and text completions share. A value of None is the same as none."""

    largest_int: ClassVar[int] = 2**64 - 1
    prompt_field: ClassVar[str] = "prompt"
    """What has the prompt."""

    model: str = Field(min_length=1, max_length=500)
    """A served model, `job-ID`, `job-ID/AGENT`, one of these with `@40`, `@best` or `@latest`, or a name to
    which a version was promoted."""
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(None, ge=-(2**63))
    """The same request with the same seed samples the same tokens, as far as the engine is reproducible;
    completion number i has the seed `seed + i`."""
    temperature: float = Field(1.0, ge=0, le=MOST_TEMPERATURE)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    """0 and -1 keep all tokens."""
    stop: StopString | Annotated[tuple[StopString, ...], Field(max_length=16)] = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    """Also return `prompt_token_ids`, and the `token_ids` of each choice, as vLLM does."""
    prompt_logprobs: Annotated[int, Field(strict=True, ge=0, le=MOST_TOP_LOGPROBS)] | StrictBool = False
    """Also return the logprob of each token of the prompt, and of this many of the likeliest tokens in its
    place, in vLLM's format; true is the same as 0."""

    user: JsonValue = None
    """Stays with one version of a name that serves two."""
    safety_identifier: JsonValue = None
    """As `user`, which it replaces."""

    @model_validator(mode="before")
    @classmethod
    def _refuses_by_name(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        kept: dict[str, Any] = {}
        for name, value in given.items():
            if name in cls.model_fields:
                if value is not None:
                    kept[name] = value
            elif name in _REFUSED:
                neutral, reason = _REFUSED[name]
                if value is not None and value != neutral:
                    raise Refusal(str(name), reason, "leave it out", "unsupported").in_validator()
            elif name not in _WITHOUT_EFFECT and value is not None:
                kept[name] = value
        return kept

    @model_validator(mode="after")
    def _streams_what_it_describes(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise no_effect("stream_options", "stream=true").in_validator()
        return self

    @property
    def longest_field(self) -> str:
        """What limits the completion."""
        return "max_tokens"

    @property
    def caller(self) -> str:
        """For whom the request is; empty if it does not say."""
        named = self.safety_identifier or self.user
        return str(named) if named else ""

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which the completion ends."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logprobs of the prompt's tokens are wanted; 0 asks for those of its tokens alone."""
        return self.prompt_logprobs is not False

    @property
    def top_prompt_logprobs(self) -> int:
        """How many of the likeliest tokens are wanted in the place of each of the prompt's."""
        return int(self.prompt_logprobs) if not isinstance(self.prompt_logprobs, bool) else 0

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether the engine must compute them, to return them or a part of them."""
        return self.wants_prompt_logprobs

    @property
    def needs_top_prompt_logprobs(self) -> int:
        """How many of the likeliest tokens the engine must return in the place of each of the prompt's."""
        return self.top_prompt_logprobs

    @property
    def wants_usage(self) -> bool:
        """Whether the last event of a stream has the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage
