"""One message of a conversation, and messages as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict, get_args

from tinkergym.errors import UnsupportedPartError
from tinkergym.trajectory.content_parts import Content, content_text, other_than_text

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)


class Message(TypedDict):
    """One message of a conversation."""

    role: Role
    content: Content
    name: NotRequired[str]
    """The speaker, or the tool that answered; not every chat template shows it."""
    tool_call_id: NotRequired[str]
    """The call that a `tool` message answers."""
    tool_calls: NotRequired[list[dict[str, Any]]]
    """For the assistant: calls in the format of OpenAI's API, for the model's own chat template."""
    tools: NotRequired[list[dict[str, Any]]]
    """For the system: functions, as JSON Schema, offered by the model's own chat template."""


def system(content: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """Return a user message, as environments send."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Return an assistant message, as policies send."""
    return {"role": "assistant", "content": content}


def messages_text(messages: Sequence[Message]) -> str:
    """Return messages as readable text: user messages as they are, others under their roles."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return content_text(messages[0]["content"])
    return "\n\n".join(f"[{message['role']}]\n{content_text(message['content'])}" for message in messages)


def plain_text(message: Message) -> str:
    """Return the content of a message that is only text.

    Raises:
        UnsupportedPartError: It has another part.
    """
    content = message["content"]
    if isinstance(content, str):
        return content
    kind = other_than_text(content)
    if kind == "image":
        raise UnsupportedPartError(
            f"a message of the {message['role']} contains an image, but this model supports only text",
            hint="choose a vision-language model such as nano-vl, or describe it in words under 'text' and "
            "leave the image out of the observation",
            field="content",
        )
    if kind:
        raise UnsupportedPartError(
            f"a message of the {message['role']} contains a part of type {kind!r}, but this model supports "
            f"only text",
            hint="convert it to text",
            field="content",
        )
    return content_text(content)


def opening_messages(
    messages: Sequence[Message], *, job_prompt: str | None, environment_prompt: str | None
) -> list[Message]:
    """Return the first messages of an episode, with the effective system prompt first.

    The job's prompt replaces the environment's, and `""` removes it. The environment's prompt is the system
    message at the start of its first observation, else the one in its metadata.
    """
    own = 0
    while own < len(messages) and messages[own]["role"] == "system":
        own += 1
    if job_prompt is not None:
        messages, prompt = messages[own:], job_prompt
    else:
        prompt = "" if own else environment_prompt or ""
    return [system(prompt), *messages] if prompt else list(messages)
