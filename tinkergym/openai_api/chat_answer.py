"""The response of `POST /chat/completions`, whole or as the events of a stream."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from typing_extensions import TypedDict

from tinkergym.openai_api.chat_request import MOST_TOOLS
from tinkergym.openai_api.sampling_fields import MOST_CHOICES
from tinkergym.schema.model import WireModel
from tinkergym.schema.sampling import MOST_TOP_LOGPROBS
from tinkergym.trajectory.trajectory import MOST_TOKENS, TokenId

FinishReason = Literal["stop", "length", "tool_calls"]
_MOST_BYTES = 1024


class Reply(WireModel):
    """A part of a response. Fields of `if_set` are left out while they are None, as clients expect."""

    if_set: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_unset(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for name in self.if_set:
            if written.get(name) is None:
                written.pop(name, None)
        return written


class Usage(WireModel):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> Usage:
        """Return them with their sum."""
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )


class LikelyToken(WireModel):
    """A token that could have been sampled."""

    token: str
    logprob: float
    """In nats; of the distribution that was drawn from."""
    bytes: list[int] = Field(max_length=_MOST_BYTES)
    """Its UTF-8 bytes, which may be a part of a character."""


class SampledToken(LikelyToken):
    """A token of the completion."""

    top_logprobs: list[LikelyToken] = Field([], max_length=MOST_TOP_LOGPROBS)


class TokenLogprobs(WireModel):
    """The tokens of a completion, or of the part of it in one event."""

    content: list[SampledToken] = Field(max_length=MOST_TOKENS)
    refusal: None = None


class CalledFunction(WireModel):
    """A function, and the arguments to call it with."""

    name: str
    arguments: str
    """JSON of an object."""


class CallReply(Reply):
    """A call of a tool."""

    if_set = frozenset({"index"})

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Its place in the message; only in streams."""


class MessageReply(Reply):
    """The policy's message."""

    if_set = frozenset({"tool_calls"})

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[CallReply] | None = Field(None, max_length=MOST_TOOLS)


class ChatChoice(Reply):
    """One completion."""

    if_set = frozenset({"token_ids"})

    index: int
    message: MessageReply
    finish_reason: FinishReason
    logprobs: TokenLogprobs | None = None
    token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)


class PromptToken(TypedDict):
    """The logprob of a token in the place of one of the prompt, in vLLM's format."""

    logprob: float
    rank: int | None
    """1 is the likeliest."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""For each token of the prompt: itself and the likeliest tokens in its place, by their ids. None for the
first."""


class ChatReply(Reply):
    """A whole response."""

    if_set = frozenset({"prompt_token_ids", "prompt_logprobs"})

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice] = Field(max_length=MOST_CHOICES)
    usage: Usage
    system_fingerprint: str
    """The policy's version."""
    service_tier: None = None
    prompt_token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)
    prompt_logprobs: PromptLogprobs | None = Field(None, max_length=MOST_TOKENS)


class MessageDelta(Reply):
    """What an event adds to the message."""

    if_set = frozenset({"role", "content", "tool_calls"})

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallReply] | None = Field(None, max_length=MOST_TOOLS)


class ChatChoiceDelta(Reply):
    """What an event adds to a completion."""

    if_set = frozenset({"token_ids"})

    index: int
    delta: MessageDelta
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)


class ChatEvent(Reply):
    """An event of a stream."""

    if_set = frozenset({"prompt_token_ids", "prompt_logprobs", "usage"})

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChoiceDelta] = Field(max_length=MOST_CHOICES)
    usage: Usage | None = None
    system_fingerprint: str
    prompt_token_ids: list[TokenId] | None = Field(None, max_length=MOST_TOKENS)
    prompt_logprobs: PromptLogprobs | None = Field(None, max_length=MOST_TOKENS)


class ServedModel(WireModel):
    """A model, or a policy, that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int
    """Most tokens of prompt and completion together."""
    description: str = ""
    """Which versions a name serves to which share of the requests."""


class ServedModels(WireModel):
    """The response of `GET /models`."""

    object: Literal["list"] = "list"
    data: list[ServedModel] = Field(max_length=10_000)
