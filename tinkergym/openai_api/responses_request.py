"""The body of `POST /responses`. Nothing is stored, so each request has the whole conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from tinkergym.errors import InvalidRequestError
from tinkergym.openai_api.chat_request import (
    MOST_MESSAGES,
    MOST_TOOLS,
    ChatRequest,
    refuse_forced_choice,
    refuse_serial_calls,
)
from tinkergym.openai_api.sampling_fields import SamplingFields
from tinkergym.schema.chat_templates import TemplateVariables
from tinkergym.schema.model import UserSettings
from tinkergym.schema.parsing import parse
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.sampling import MOST_TOP_LOGPROBS
from tinkergym.trajectory.trajectory import MOST_TOKENS

_LOGPROBS = "message.output_text.logprobs"
_ABSENT = frozenset({"reasoning.encrypted_content"})
"""What a response may include, if it exists; here it never does."""


_THEIR_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
"""The fields that chat completions name differently."""


class FlatTool(UserSettings):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None
    """Ignored: calls are read from what the model writes."""


class FlatFormat(UserSettings):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    json_schema: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """Return it as `response_format` of a chat completion."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.json_schema}}


class TextSettings(UserSettings):
    """How the text is written."""

    format: FlatFormat = Field(default_factory=FlatFormat)
    verbosity: str | None = None
    """Ignored."""


class ReasoningSettings(UserSettings):
    """How much the model thinks before it answers."""

    effort: str | None = None
    """The value of the template's variable `reasoning_effort`."""
    summary: str | None = None
    """Ignored: thoughts are part of the text, as the policy writes them."""
    generate_summary: str | None = None


class ResponsesRequest(SamplingFields):
    """A conversation to continue, and how."""

    input: (
        Annotated[str, Field(max_length=10_000_000)]
        | Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES)]
    )
    """A user's message, or the items of the conversation."""
    instructions: str | None = None
    """The system prompt."""
    max_output_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP_LOGPROBS)
    tools: list[FlatTool] = Field([], max_length=MOST_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    text: TextSettings | None = None
    include: list[str] = Field([], max_length=20)
    reasoning: ReasoningSettings | None = None
    truncation: Literal["disabled"] = "disabled"
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)

    _choice = field_validator("tool_choice", mode="before")(refuse_forced_choice)
    _parallel = field_validator("parallel_tool_calls", mode="before")(refuse_serial_calls)

    @model_validator(mode="after")
    def _has_one_response(self) -> Self:
        for name in ("n", "return_token_ids", "prompt_logprobs"):
            if self.is_chosen(name):
                hint = "leave it out, or use chat/completions"
                raise Refusal(name, "is not supported here", hint, "unsupported").in_validator()
        if unknown := [one for one in self.include if one != _LOGPROBS and one not in _ABSENT]:
            reason = f"cannot have {unknown[0]!r:.80}"
            raise Refusal("include", reason, f"{_LOGPROBS} is supported", "unsupported").in_validator()
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether the response has the logprobs of its tokens."""
        return _LOGPROBS in self.include or self.top_logprobs > 0

    def chat(self) -> ChatRequest:
        """Return the same request for a chat completion.

        Raises:
            InvalidRequestError: An item of the input is not supported.
        """
        with in_their_names():
            return self._chat()

    def _chat(self) -> ChatRequest:
        same = ("model", "seed", "temperature", "top_p", "top_k", "stop", "structured_outputs", "stream")
        settings: dict[str, Any] = {name: getattr(self, name) for name in same if self.is_chosen(name)}
        effort = None if self.reasoning is None else self.reasoning.effort
        chosen = None if self.text is None else self.text.format
        return parse(
            ChatRequest,
            {
                **settings,
                "messages": list(self._messages()),
                "max_completion_tokens": self.max_output_tokens,
                "logprobs": self.wants_logprobs,
                "top_logprobs": self.top_logprobs,
                "tools": [
                    {"type": tool.type, "function": tool.model_dump(exclude={"type"})} for tool in self.tools
                ],
                "tool_choice": self.tool_choice,
                "response_format": None if chosen is None or chosen.type == "text" else chosen.as_chat(),
                "chat_template_kwargs": self.chat_template_kwargs,
                "reasoning_effort": effort,
            },
        )

    def _messages(self) -> Iterator[dict[str, Any]]:
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        spoken: dict[str, Any] | None = None
        for number, item in enumerate(items):
            message = _message(item, number)
            if message is None:
                continue
            # A message and its calls are several items, one after the other.
            if spoken is not None and message["role"] == "assistant" and "tool_calls" in message:
                spoken.setdefault("tool_calls", []).extend(message["tool_calls"])
                continue
            if spoken is not None:
                yield spoken
            spoken = message if message["role"] == "assistant" else None
            if spoken is None:
                yield message
        if spoken is not None:
            yield spoken


@contextmanager
def in_their_names() -> Iterator[None]:
    """Let errors about the chat completion name the fields of the request that it stands for."""
    try:
        yield
    except InvalidRequestError as error:
        name = re.split(r"[.[]", error.field)[0]
        error.field = _THEIR_NAMES.get(name, error.field)
        raise


def _message(item: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    """Return an item as a message; None for one that templates do not show."""
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": item.get("content")}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            return None
        case other:
            raise InvalidRequestError(
                f"an item of type {other!r:.80} is not supported",
                hint="send messages, function_call and function_call_output",
                field=f"input[{number}]",
                code="unsupported",
            )
