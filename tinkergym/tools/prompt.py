"""The description of tools for a model, in the syntax of its calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tool_calls.syntax import Syntax, render_calls
from tinkergym.tools.definition import Tool

_HOW = {
    "hermes": "To call one, write a JSON object with its name and arguments between <tool_call> tags:",
    "xml": "To call one, write its name and arguments between <tool_call> tags, each value on its own lines:",
    "json": "To call one, write nothing but a JSON object with its name and arguments, on its own lines:",
}
_CONTRACT = (
    "You may make several calls in one answer; they run in order, and then you see what each returned."
)
_FINAL = "An answer without a call is final."


def describe_tools(
    tools: Sequence[Tool], syntax: Syntax, *, max_calls: int | None = None, without_call: str = _FINAL
) -> str:
    """Return the part of a system prompt that offers tools.

    A job's own system prompt replaces the environment's; include this in it.

    Args:
        tools: The offered tools.
        syntax: The syntax of calls.
        max_calls: The most calls in an episode; None means only the episode's limits apply.
        without_call: The meaning of an answer without a call.

    Raises:
        InvalidRequestError: The syntax is `native`.
    """
    schemas = [tool.schema() for tool in tools]
    return describe_schemas(schemas, syntax, max_calls=max_calls, without_call=without_call)


def describe_schemas(
    schemas: Sequence[Mapping[str, Any]],
    syntax: Syntax,
    *,
    max_calls: int | None = None,
    without_call: str = _FINAL,
) -> str:
    """Return the same for tools of which only the JSON schemas are available."""
    if syntax == "native":
        raise InvalidRequestError(
            "with the syntax native, the model's chat template describes the tools instead of a prompt",
            hint='choose "hermes", "xml" or "json" to describe them here',
            field="syntax",
        )
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    offered = lines if syntax == "json" else f"<tools>\n{lines}\n</tools>"
    example = render_calls([ToolCall("tool_name", {"argument_name": "value"})], syntax)
    limit = "" if max_calls is None else f" You have {max_calls} call{'s' * (max_calls != 1)} in all."
    return (
        f"# Tools\n\nYou may call these functions, described by JSON schemas:\n{offered}\n\n"
        f"{_HOW[syntax]}\n{example}\n\n{_CONTRACT} {without_call}{limit}"
    )
