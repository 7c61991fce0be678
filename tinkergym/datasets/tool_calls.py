"""Tool calls in datasets: rendered by the model's own chat template, as answers.

So the policy learns exactly the call format that its template uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.agent.image_placeholders import with_marks
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import RowFaultError, checked_message
from tinkergym.datasets.rows import no_constant
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, assistant, checked_content, plain_text, user

_OPENINGS = ("messages", "prompt")
_FIELDS = (*_OPENINGS, "completion", "chosen", "rejected")
"""The fields of a row with messages, in the order of the conversation."""


def tools_of(row: Any) -> tuple[Any, list[Any]]:
    """Return a row without its `tools`, and the tools: the functions that the template shows to the model.

    Raises:
        RowFaultError: They are not a list of objects, or JSON of one.
    """
    if not isinstance(row, Mapping) or not row.get("tools"):
        kept = {k: v for k, v in row.items() if k != "tools"} if isinstance(row, Mapping) else row
        return kept, []
    tools = row["tools"]
    if isinstance(tools, str):
        tools = _loaded(tools, "tools")
    if not isinstance(tools, list) or not all(isinstance(one, Mapping) for one in tools):
        raise RowFaultError("tools: must be a list of objects, as in OpenAI's API")
    return {name: value for name, value in row.items() if name != "tools"}, tools


def calls_as_text(renderer: Renderer, row: Any) -> Any:
    """Return a row whose assistant messages with `tool_calls` contain the text of these calls.

    Raises:
        RowFaultError: A message is not valid, or a call is not in the format of OpenAI's API.
        TemplateError: The model's template does not show calls, or refuses the conversation before one.
    """
    if not isinstance(row, Mapping) or not any(_holds_calls(row.get(name)) for name in _FIELDS):
        return row
    written: dict[str, Any] = dict(row)
    before: list[Message] = []
    for name in _FIELDS:
        given = row.get(name)
        if name == "prompt" and isinstance(given, str):
            before = [user(given)]
        elif isinstance(given, list | tuple):
            written[name] = _spoken(renderer, before, given, name)
            if name in _OPENINGS:
                before = written[name]
    return written


def _spoken(
    renderer: Renderer, before: Sequence[Message], messages: Sequence[Any], field: str
) -> list[Message]:
    """Return messages in which calls are text.

    Args:
        renderer: The model's renderer.
        before: The conversation before them.
        messages: The messages.
        field: Their field, for errors.
    """
    spoken: list[Message] = []
    shown = [_in_one_string(renderer, message) for message in before]
    for place, message in enumerate(messages):
        where = f"{field}[{place}]"
        text = assistant(_answer(renderer, shown, message, where)) if _calls(message) else message
        spoken.append(checked_message(text, where))
        shown.append(_in_one_string(renderer, spoken[-1]))
    return spoken


def _in_one_string(renderer: Renderer, message: Message) -> Message:
    if renderer.images is None:
        return {**message, "content": plain_text(message)}
    return with_marks(message)


def _answer(renderer: Renderer, before: Sequence[Message], message: Mapping[str, Any], where: str) -> str:
    """Return what the template writes for a message with calls."""
    if message.get("role") != "assistant":
        raise RowFaultError(f"{where}.tool_calls: only the assistant calls tools")
    without = {name: value for name, value in message.items() if name != "tool_calls"}
    without["content"] = _content(message.get("content"), where)
    calls = _read(message["tool_calls"], f"{where}.tool_calls")
    text = renderer.answer_text(before, {**without, "tool_calls": calls})
    try:
        left_out = text == renderer.answer_text(before, without)
    except TemplateError:  # It writes nothing for the text alone.
        left_out = False
    if left_out:
        raise TemplateError(f"the chat template leaves out {where}.tool_calls")
    return text


def _content(given: Any, where: str) -> str:
    """Return the text next to calls."""
    if isinstance(given, list | tuple):
        try:
            given = checked_content(given, where)
        except ValueError as error:
            raise RowFaultError(str(error)) from error
    if given is not None and not isinstance(given, str):
        raise RowFaultError(f"{where}.content: must be text or null next to tool_calls")
    return given or ""


def _holds_calls(messages: Any) -> bool:
    return isinstance(messages, list | tuple) and any(map(_calls, messages))


def _calls(message: Any) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls"))


def _read(calls: Any, where: str) -> Sequence[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RowFaultError(f"{where}: must be a list, not {type(calls).__name__}")
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowFaultError(f"{where}: must be an object with a function that has a name and arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        # OpenAI's API uses JSON in a string; templates need the object.
        arguments = _loaded(arguments or "{}", f"{where}.function.arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise RowFaultError(f"{where}.function.arguments: must be an object, or JSON of one")
    return {**call, "type": "function", "function": {**function, "arguments": dict(arguments)}}


def _loaded(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise RowFaultError(f"{where}: not valid JSON: {error}") from None
