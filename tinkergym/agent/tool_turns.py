"""Tool turns: convert between the model's format of calls and what an environment sees.

An environment gets every call in one form, and answers with messages of the role `tool`. It does not
depend on the model's template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.messages import Message, messages_text, plain_text
from tinkergym.tool_calls.call import CallText, MalformedCall, ToolCall
from tinkergym.tool_calls.grammar import CallGrammar
from tinkergym.trajectory.content_parts import (
    Content,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    content_text,
)


def offered_tools(messages: Sequence[Message]) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return messages without the `tools` of system messages, and these tools.

    An otherwise empty system message is dropped, so that another prompt can apply.
    """
    tools = [tool for message in messages for tool in message.get("tools", ())]
    if not tools:
        return list(messages), []
    kept: list[Message] = []
    for message in messages:
        if "tools" in message:
            if not message["content"]:
                continue
            message = {"role": "system", "content": message["content"]}  # noqa: PLW2901
        kept.append(message)
    return kept, tools


def require_calls_readable(renderer: Renderer) -> None:
    """Check that tool calls can be parsed from a model's answers.

    Raises:
        TemplateError: Its template does not write them, or their format is not supported.
    """
    _ = renderer.call_grammar


class ToolTurns:
    """The calls of one conversation: parsed from answers, and matched with their results."""

    def __init__(self, grammar: CallGrammar) -> None:
        """Begin a conversation.

        Args:
            grammar: The grammar of the model's template.
        """
        self._grammar = grammar
        self._made = 0
        self._answered: list[ToolCallPart | None] = []
        """The calls of the newest answer in order; None for one that could not be parsed."""
        self._content = ""
        self._calls: list[ToolCall] = []
        """The calls of the newest answer, if all could be parsed."""

    def action(self, text: str) -> Content:
        """Return an answer's text and calls, in parts if it makes calls.

        The environment gets it from `for_environment`.

        Args:
            text: The policy's text, without the tokens that end it.
        """
        read = self._grammar.read(text)
        self._content, self._answered = read.content, []
        calls = [call for call in read.calls if isinstance(call, ToolCall)]
        self._calls = calls if len(calls) == len(read.calls) else []
        if not read.calls:
            return text
        parts: list[Part] = [TextPart(text=read.content)] if read.content else []
        for call in read.calls:
            if isinstance(call, MalformedCall):
                # The environment reports it to the policy, because it cannot parse it either.
                parts.append(TextPart(text=f"<tool_call>\n{call.text}\n</tool_call>"))
                self._answered.append(None)
                continue
            part = ToolCallPart(
                id=call.id or f"call{self._made:05d}",
                name=call.name,
                arguments=json.dumps(call.arguments, ensure_ascii=False),
            )
            self._made += 1
            parts.append(part)
            self._answered.append(part)
        return parts

    def for_environment(self, action: Content) -> str:
        """Return the newest answer as an environment gets it: a text, with its calls."""
        text = content_text(action)
        return CallText(text, self._calls) if self._calls else text

    def spoken(self, seen: str) -> Message:
        """Return the newest answer for later prompts.

        Args:
            seen: Its whole text, which is used if it makes no calls.
        """
        calls = [part for part in self._answered if part is not None]
        if not calls:
            return {"role": "assistant", "content": seen}
        content = self._content if self._content in seen else seen.partition("<tool_call>")[0]
        return {"role": "assistant", "content": content.strip(), "tool_calls": list(map(_written, calls))}

    def replies(self, messages: Sequence[Message]) -> list[Message]:
        """Return an environment's messages, with each result tied to its call.

        The error for a call that could not be parsed is added to the last result, or else sent as a user
        message, because templates only support results of calls.
        """
        order = iter(self._answered)
        found: list[Message] = []
        strays: list[str] = []
        for message in messages:
            if message["role"] != "tool":
                found.append(message)
                continue
            part = next(order, None)
            if part is None:
                strays.append(plain_text(message))
                continue
            found.append({"role": "tool", "content": message["content"], "name": part.name})
            found[-1]["tool_call_id"] = part.id
        if not strays:
            return found
        text = "\n".join(strays)
        last = next((place for place in range(len(found) - 1, -1, -1) if found[place]["role"] == "tool"), -1)
        if last < 0:
            return [{"role": "user", "content": text}, *found]
        found[last] = {**found[last], "content": f"{plain_text(found[last])}\n{text}"}
        return found


def observed(messages: Sequence[Message]) -> Content:
    """Return messages as a turn's observation: results of calls in parts of their own."""
    if not any("tool_call_id" in message and message["role"] == "tool" for message in messages):
        return messages_text(messages)
    parts: list[Part] = []
    for message in messages:
        if message["role"] == "tool" and "tool_call_id" in message:
            parts.append(ToolResultPart(id=message["tool_call_id"], text=plain_text(message)))
        else:
            parts.append(TextPart(text=messages_text([message])))
    return parts


def _written(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.loads(part.arguments)}
    return {"id": part.id, "type": "function", "function": function}
