"""The body of `POST /chat/completions`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from tinkergym.openai_api.sampling_fields import ReplyFormat, SamplingFields
from tinkergym.schema.chat_templates import TemplateVariables
from tinkergym.schema.model import UserSettings
from tinkergym.schema.refusals import Refusal, no_effect
from tinkergym.schema.sampling import MOST_TOP_LOGPROBS
from tinkergym.schema.structured import JsonSchema, Regex
from tinkergym.trajectory.trajectory import MOST_TOKENS

MOST_MESSAGES = 10_000
MOST_TOOLS = 1000


class ChatFunction(UserSettings):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    """JSON Schema of its arguments."""
    strict: bool | None = None
    """Ignored: calls are read from what the model writes."""


class ChatTool(UserSettings):
    """A tool; there are only functions."""

    type: Literal["function"] = "function"
    function: ChatFunction

    def as_shown(self) -> dict[str, Any]:
        """Return it as chat templates show it."""
        shown = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": shown}


def refuse_forced_choice(value: object) -> object:
    """Refuse to force calls of tools.

    Raises:
        PydanticCustomError: The value is neither `auto` nor `none`.
    """
    if value in (None, "auto", "none"):
        return value
    reason = "can be 'auto' or 'none': the policy decides whether it calls a tool"
    raise Refusal("", reason, "leave it out", "unsupported").in_validator()


def refuse_serial_calls(value: object) -> object:
    """Refuse to limit a completion to one call.

    Raises:
        PydanticCustomError: The value is False.
    """
    if value is False:
        reason = "cannot be false: the policy decides how many calls it writes"
        raise Refusal("", reason, "leave it out", "unsupported").in_validator()
    return value


class ChatRequest(SamplingFields):
    """A conversation to continue, and how."""

    prompt_field: ClassVar[str] = "messages"

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_MESSAGES)
    """The conversation in the API's format; see `chat_messages`."""
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """The longest completion; by default the rest of the model's context. `max_tokens` is its older name."""
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP_LOGPROBS)
    tools: list[ChatTool] = Field([], max_length=MOST_TOOLS)
    tool_choice: Any = None
    """`auto`, or `none`, which shows no tools to the model."""
    parallel_tool_calls: bool = True
    response_format: ReplyFormat | None = None
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Values of the chat template's variables, as in vLLM; they replace those of the policy's job."""
    reasoning_effort: str | None = None
    """Short for the variable of this name, for templates that have it."""

    _choice = field_validator("tool_choice", mode="before")(refuse_forced_choice)
    _parallel = field_validator("parallel_tool_calls", mode="before")(refuse_serial_calls)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise no_effect("top_logprobs", "logprobs=true").in_validator()
        if self.structured_outputs is not None and self.response_format is not None:
            hint = "leave one of them out"
            raise Refusal("structured_outputs", "excludes response_format", hint, "not_one").in_validator()
        if self.tools and self.structured is not None:
            reason = "excludes tools: the completion would have to match the schema, and be a call"
            raise Refusal("response_format", reason, "leave one of them out", "unsupported").in_validator()
        return self

    @property
    def longest(self) -> int | None:
        """The longest completion; None is the rest of the context."""
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(limits, default=None)

    @property
    def longest_field(self) -> str:
        """What limits the completion."""
        return "max_tokens" if self.longest == self.max_tokens else "max_completion_tokens"

    @property
    def structured(self) -> Regex | JsonSchema | None:
        """What constrains the completion."""
        if self.structured_outputs is not None:
            return self.structured_outputs.structured
        return None if self.response_format is None else self.response_format.structured

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as the chat template shows them."""
        return [] if self.tool_choice == "none" else [tool.as_shown() for tool in self.tools]

    @property
    def variables(self) -> dict[str, Any]:
        """Values of the chat template's variables."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {**effort, **self.chat_template_kwargs}
