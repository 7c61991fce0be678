"""Sampled completions as the response of `POST /chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from tinkergym.openai_api.chat_answer import ChatChoice, ChatReply, MessageReply, Usage
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.completion_text import Said, logprobs_of, prompt_logprobs_of, text_of
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.schema.sampling import Completion


def chat_choices(
    prompt: Prompt, wanted: ChatRequest, found: Sequence[Completion], reply_id: str, created: int
) -> ChatReply:
    """Return the whole response.

    Args:
        prompt: What was continued.
        wanted: The request.
        found: Its completions, in the order of the choices.
        reply_id: The response's id.
        created: Unix seconds.
    """
    return ChatReply(
        id=reply_id,
        created=created,
        model=wanted.model,
        choices=[_choice(prompt, wanted, one, index) for index, one in enumerate(found)],
        usage=Usage.of(len(prompt.token_ids), sum(len(one.token_ids) for one in found)),
        system_fingerprint=fingerprint(found[0].policy_version),
        prompt_token_ids=prompt.token_ids if wanted.return_token_ids else None,
        prompt_logprobs=prompt_logprobs_of(
            prompt.renderer, prompt.token_ids, found[0], wanted.top_prompt_logprobs
        ),
    )


def fingerprint(version: int) -> str:
    """Return the `system_fingerprint` of a policy's version."""
    return f"version-{version}"


def said_in(prompt: Prompt, completion: Completion) -> Said:
    """Return the message of a completion."""
    text = text_of(prompt.renderer, completion)
    return Said(content=text, calls=[]) if prompt.calls is None else prompt.calls.said(text)


def _choice(prompt: Prompt, wanted: ChatRequest, one: Completion, index: int) -> ChatChoice:
    said = said_in(prompt, one)
    tokens = None
    if wanted.logprobs:
        tokens = logprobs_of(prompt.renderer, one.token_ids, one.sampling_logprobs, one.top_logprobs)
    return ChatChoice(
        index=index,
        message=MessageReply(content=said.content, tool_calls=said.calls or None),
        finish_reason=said.finish_reason(one.finish_reason),
        logprobs=tokens,
        token_ids=one.token_ids if wanted.return_token_ids else None,
    )
