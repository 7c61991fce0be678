"""Parse a dataset row: a conversation with answers, or a prompt with two answers to compare.

Independent of tokens. Every error message begins with the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from tinkergym.messages import Message, assistant, checked_content, message_fault, plain_text, user


class RowFaultError(ValueError):
    """A row cannot be trained on. The message says which field and why."""


class OverlongRowError(RowFaultError):
    """A row has more tokens than any model's context."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"row: {tokens} tokens")
        self.tokens = tokens


ANSWERS = frozenset({"completion", "chosen", "rejected", "label"})
"""What rows have besides the conversation that is to be answered."""


class RowMessage(Message):
    """A message of a row, with what only rows have."""

    weight: NotRequired[int]
    """0 for an answer that is shown and not trained on."""
    written: NotRequired[Message]
    """The message for the template, where the content is what the template writes for it."""


def is_trained(message: Message) -> bool:
    """Whether a message is an answer to train on."""
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def conversation(row: Any) -> list[Message]:
    """Parse a row for SFT: `{"messages": [...]}` or `{"prompt": ..., "completion": ...}`.

    A prompt is one user message, or a list of messages; a completion is one answer.

    Raises:
        RowFaultError: It is neither.
    """
    fields = _object(row)
    if {"chosen", "rejected"} <= fields.keys():
        raise RowFaultError(
            "row: chosen and rejected answers are for client.preference, tinkergym preference"
        )
    if "messages" in fields:
        _refuse_others(fields, {"messages"})
        messages = _messages(fields["messages"], "messages")
    else:
        if fields and not fields.keys() & {"prompt", "completion"}:
            # Data in another layout: errors about single keys would not help.
            given = ", ".join(sorted(map(_quoted, fields)))
            raise RowFaultError(f"row: needs messages, or prompt and completion; it has {given}")
        _refuse_missing(fields, ("prompt", "completion"))
        _refuse_others(fields, {"prompt", "completion"})
        messages = [*_prompt(fields["prompt"], "prompt"), *_answers(fields["completion"], "completion")]
    if not any(message["role"] == "assistant" for message in messages):
        raise RowFaultError("messages: no message is from the assistant, so nothing would be learned")
    if not any(map(is_trained, messages)):
        raise RowFaultError("messages: every answer has the weight 0, so nothing would be learned")
    _check_order(messages, "messages" if "messages" in fields else "prompt")
    _refuse_empty(messages, "messages" if "messages" in fields else "completion")
    return messages


def question(row: Any) -> list[Message]:
    """Parse what a row asks: its messages, or its prompt. A last answer, and other answers, are left out.

    Raises:
        RowFaultError: It is not such a row, or nothing is asked.
    """
    fields = _object(row)
    opening = "messages" if "messages" in fields else "prompt"
    if fields and opening not in fields:
        given = ", ".join(sorted(map(_quoted, fields)))
        raise RowFaultError(f"row: needs messages, prompt or text; it has {given}")
    _refuse_missing(fields, (opening,))
    _refuse_others(fields, {opening, *ANSWERS}, "copy it to the results with keep=, or pass ignore=")
    messages = _prompt(fields[opening], opening)
    if opening == "messages" and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages or messages[-1]["role"] in ("system", "assistant"):
        raise RowFaultError(f"{opening}: nothing is asked, as the last message is not the user's or a tool's")
    _check_order(messages, opening)
    return messages


def comparison(row: Any) -> tuple[list[Message], str, str]:
    """Parse a row for preferences: a prompt (or messages), the chosen answer and the rejected one.

    Raises:
        RowFaultError: It is not such a row.
    """
    fields = _object(row)
    opening = "messages" if "messages" in fields else "prompt"
    if fields and not fields.keys() & {"chosen", "rejected"}:
        raise RowFaultError(
            "row: needs chosen and rejected answers; one answer is for client.sft, tinkergym sft"
        )
    _refuse_missing(fields, (opening, "chosen", "rejected"))
    _refuse_others(fields, {opening, "chosen", "rejected"})
    messages = _prompt(fields[opening], opening)
    if messages and messages[-1]["role"] == "assistant":
        raise RowFaultError(f"{opening}: the last message must not be the assistant's")
    chosen, rejected = (plain_text(_answer(fields[name], name)) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise RowFaultError("rejected: the same as chosen, so there is nothing to prefer")
    _check_order([*messages, assistant(chosen)], opening)
    return messages, chosen, rejected


def checked_message(value: Any, where: str) -> Message:
    """Return a message whose content is a string or checked parts.

    Raises:
        RowFaultError: It is not a message.
    """
    content: Any = value.get("content") if isinstance(value, Mapping) else None
    if isinstance(content, list | tuple):
        try:
            content = checked_content(content, where)
        except ValueError as error:
            raise RowFaultError(str(error)) from error
        value = {**value, "content": content if isinstance(content, str) else ""}
    if isinstance(value, Mapping) and "role" in value and content is None:
        raise RowFaultError(f"{where}.content: missing or null; only an answer with tool_calls may have none")
    if isinstance(value, Mapping) and "tools" in value:
        raise RowFaultError(f"{where}.tools: stand in the row, next to messages")
    if isinstance(value, Mapping):
        extras = {key: value[key] for key in ("weight", "written") if key in value}
        value = {key: one for key, one in value.items() if key not in extras}
        if "weight" in extras and value.get("role") != "assistant":
            raise RowFaultError(f"{where}.weight: only for messages of the assistant")
        if "weight" in extras and extras["weight"] not in (0, 1):
            raise RowFaultError(f"{where}.weight: must be 0 or 1, not {extras['weight']!r:.60}")
    if fault := message_fault(value):
        raise RowFaultError(f"{where}: {fault}")
    return {**value, "content": content, **extras}  # type: ignore[typeddict-item]


def _object(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise RowFaultError(f"row: must be a JSON object, not {type(row).__name__}")
    return row


def _refuse_others(
    fields: Mapping[str, Any], known: set[str], advice: str = "remove it, or pass ignore="
) -> None:
    unknown = sorted(str(name) for name in fields if name not in known)
    if unknown:
        names = ", ".join(sorted(known))
        raise RowFaultError(f"{_quoted(unknown[0])}: unknown key besides {names}; {advice}")


def _refuse_missing(fields: Mapping[str, Any], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in fields:
            given = ", ".join(sorted(map(_quoted, fields))) or "nothing"
            raise RowFaultError(f"{name}: missing; the row has {given}")


def _prompt(value: Any, field: str) -> list[Message]:
    if isinstance(value, str):
        return _messages([user(value)], field)
    return _messages(value, field)


def _answers(value: Any, field: str) -> list[Message]:
    if isinstance(value, list) and len(value) > 1:
        return _messages(value, field)
    return [_answer(value, field)]


def _answer(value: Any, field: str) -> Message:
    if isinstance(value, list) and len(value) == 1:
        (message,) = _messages(value, field)
        if message["role"] != "assistant":
            raise RowFaultError(
                f"{field}[0].role: an answer must have the role assistant, not {message['role']!r}"
            )
        return message
    if not isinstance(value, str):
        raise RowFaultError(f"{field}: must be a string or one assistant message, not {type(value).__name__}")
    (message,) = _messages([assistant(value)], field)
    return message


def _messages(value: Any, field: str) -> list[Message]:
    if not isinstance(value, list | tuple) or not value:
        found = "an empty list" if isinstance(value, list | tuple) else type(value).__name__
        raise RowFaultError(f"{field}: must be a list of messages, not {found}")
    return [checked_message(message, f"{field}[{index}]") for index, message in enumerate(value)]


def _check_order(messages: Sequence[Message], field: str) -> None:
    before = "nothing"
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system" and index:
            raise RowFaultError(f"{field}[{index}].role: a system message must come first")
        if role == "assistant" and before in ("nothing", "system", "assistant"):
            raise RowFaultError(f"{field}[{index}].role: an answer cannot follow {before}")
        before = role


def _refuse_empty(messages: Sequence[Message], field: str) -> None:
    for index, message in enumerate(messages):
        if is_trained(message) and not message["content"]:
            place = f"messages[{index}].content" if field == "messages" else field
            raise RowFaultError(
                f"{place}: empty, so the policy would learn to say nothing; remove the row or the message"
            )


def _quoted(name: object) -> str:
    return ascii(str(name)[:60])
