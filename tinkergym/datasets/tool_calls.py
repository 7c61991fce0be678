"""Tool calls in datasets: rendered by the model's own chat template, as answers.

So the policy learns exactly the call format that its template uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import RowFaultError


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
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise RowFaultError(f"tools: not valid JSON: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(one, Mapping) for one in tools):
        raise RowFaultError("tools: must be a list of objects, as in OpenAI's API")
    return {name: value for name, value in row.items() if name != "tools"}, tools


def calls_as_text(renderer: Renderer, row: Any) -> Any:
    """Return a row whose assistant messages with `tool_calls` contain the text of these calls.

    Raises:
        RowFaultError: A call is not in the format of OpenAI's API.
        TemplateError: The model's template does not show calls, or refuses the conversation before one.
    """
    messages = row.get("messages") if isinstance(row, Mapping) else None
    if not isinstance(messages, list | tuple) or not any(map(_calls, messages)):
        return row
    spoken: list[Any] = []
    for place, message in enumerate(messages):
        if not _calls(message):
            spoken.append(message)
            continue
        if message.get("role") != "assistant":
            raise RowFaultError(f"messages[{place}].tool_calls: only the assistant calls tools")
        called = {
            **message,
            "content": message.get("content") or "",
            "tool_calls": _read(message["tool_calls"], f"messages[{place}].tool_calls"),
        }
        text = renderer.answer_text(spoken, called)
        spoken.append({"role": "assistant", "content": text})
    return {**row, "messages": spoken}


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
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise RowFaultError(f"{where}.function.arguments: not valid JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise RowFaultError(f"{where}.function.arguments: must be an object, or JSON of one")
    return {**call, "type": "function", "function": {**function, "arguments": dict(arguments)}}
