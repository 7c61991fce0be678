"""Requests of the API as requests for tokens: the prompt rendered, the settings translated."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, PromptTooLongError
from tinkergym.images.stored_images import image_file
from tinkergym.openai_api.chat_messages import ReadImage, conversation
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.completion_text import CallReader
from tinkergym.openai_api.sampling_fields import SamplingFields
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.structured import Structured
from tinkergym.tool_calls.call import THINKING, THOUGHT
from tinkergym.trajectory.content_parts import ImageSpan

_SEEDS = 2**64
_MOST_PROMPT_LOGPROBS = 200_000
"""In a response. vLLM's format has an object for each: all take about 50 MB of memory and 15 MB of JSON."""
_OPENED = 16
"""At the end of a prompt: more than the tokens with which templates open reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a completion continues."""

    renderer: Renderer
    """The policy's, with the tools and the variables of the request."""
    token_ids: list[int]
    images: list[ImageSpan] = field(default_factory=list)
    calls: CallReader | None = None
    """Reads calls from completions, if the prompt offers tools."""

    @property
    def thinks(self) -> bool:
        """Whether it ends within reasoning, which may mention calls."""
        end = self.renderer.decode(self.token_ids[-_OPENED:])
        return end.rfind(THINKING) > end.rfind(THOUGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Whose tokens are sampled."""

    name: str
    """A job's id, with its agent, or a model's name."""
    version: int | None = None
    """None is the newest."""


def chat_prompt(renderer: Renderer, request: ChatRequest, read_image: ReadImage = image_file) -> Prompt:
    """Render a conversation as the agent loop renders the same one in training.

    Raises:
        TemplateError: The template does not show the tools or a message, or has no such variable.
        InvalidRequestError: A message is invalid.
    """
    messages, tools = conversation(request.messages, read_image), request.shown_tools
    shown = renderer.with_tools(tools, request.variables)
    token_ids = shown.start(messages)
    return Prompt(
        renderer=shown,
        token_ids=token_ids,
        images=shown.spans(token_ids, messages),
        calls=CallReader(shown, tools, messages) if tools else None,
    )


def text_prompts(renderer: Renderer, given: Sequence[str | list[int]]) -> list[Prompt]:
    """Return texts, and lists of token ids, as prompts."""
    return [
        Prompt(renderer=renderer, token_ids=renderer.text_ids(one) if isinstance(one, str) else list(one))
        for one in given
    ]


def token_requests(
    prompts: Sequence[Prompt],
    fields: SamplingFields,
    policy: Policy,
    *,
    longest: int | None,
    top_logprobs: int = 0,
    structured: Structured | None = None,
) -> list[SampleRequest]:
    """Return the requests for `n` completions of each prompt, in the order of the choices.

    Raises:
        PromptTooLongError: A prompt leaves no room for a completion, or not for `longest` tokens.
    """
    name, first = f"openai-{secrets.token_hex(12)}", fields.seed
    seed = secrets.randbits(63) if first is None else first
    of_prompt = {
        "prompt_logprobs": fields.needs_prompt_logprobs,
        "top_prompt_logprobs": fields.needs_top_prompt_logprobs,
    }
    requests: list[SampleRequest] = []
    for prompt in prompts:
        room = room_behind(prompt, fields)
        if longest is not None and longest > room:
            raise PromptTooLongError(
                f"{_context_of(prompt)} and wants up to {longest} more",
                hint=f"shorten it, or allow at most {room}, which is the default",
                field=fields.longest_field,
            )
        shared = {
            "policy": policy.name,
            "policy_version": policy.version,
            "prompt_ids": prompt.token_ids,
            "max_tokens": room if longest is None else longest,
            "temperature": fields.temperature,
            "top_p": fields.top_p,
            "top_k": max(0, fields.top_k),
            "structured": structured,
            "stop": fields.stops,
            "stop_ids": prompt.renderer.stop_ids,
            "top_logprobs": top_logprobs,
            "images": prompt.images,
        }
        for number in range(fields.n):
            index = len(requests)
            requests.append(
                # Its parts are checked, and the settings are within the same bounds.
                SampleRequest.model_validate(
                    {
                        **shared,
                        "request_id": f"{name}-{index}",
                        "seed": (seed + number) % _SEEDS,
                        # The same for all completions of a prompt.
                        **(of_prompt if number == 0 else {}),
                    }
                )
            )
    return requests


def refuse_many_prompt_logprobs(
    prompts: Sequence[Prompt], fields: SamplingFields, *, repeats: int = 1
) -> None:
    """Check the size of a response that has the logprobs of each prompt so many times.

    Raises:
        InvalidRequestError: They are more than 200,000.
    """
    if not fields.needs_prompt_logprobs:
        return
    tokens = sum(len(prompt.token_ids) for prompt in prompts)
    many = repeats * tokens * (1 + fields.needs_top_prompt_logprobs)
    if many > _MOST_PROMPT_LOGPROBS:
        field = "prompt_logprobs" if fields.wants_prompt_logprobs else "logprobs"
        smaller = field if repeats == 1 else f"{field} or n"
        raise InvalidRequestError(
            f"the response would have {many:,} logprobs of prompts, more than the limit of "
            f"{_MOST_PROMPT_LOGPROBS:,}",
            hint=f"lower {smaller}, or send less text per request",
            field=field,
        )


def room_behind(prompt: Prompt, fields: SamplingFields) -> int:
    """Return how many tokens fit behind a prompt.

    Raises:
        InvalidRequestError: It has no tokens.
        PromptTooLongError: None fits.
    """
    if not prompt.token_ids:
        hint = "write at least one"
        raise InvalidRequestError("the prompt has no tokens", hint=hint, field=fields.prompt_field)
    room = prompt.renderer.context_length - len(prompt.token_ids)
    if room < 1:
        raise PromptTooLongError(
            f"{_context_of(prompt)} and needs room for a completion",
            hint="shorten it",
            field=fields.prompt_field,
        )
    return room


def _context_of(prompt: Prompt) -> str:
    # Some clients know the error by these words.
    most = f"this model's maximum context length is {prompt.renderer.context_length} tokens"
    return f"{most}; the prompt has {len(prompt.token_ids)}"
