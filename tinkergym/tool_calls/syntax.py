"""Syntaxes for tool calls: text to calls and back. Pure; accepts any text without raising.

Three syntaxes: `hermes` (`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`), `xml` (`<tool_call>`
with `<function=...>` and `<parameter=...>` inside) and `json` (an object on lines of its own). A parser reads
each character a bounded number of times, so its time is proportional to the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from tinkergym.messages import is_unicode
from tinkergym.tool_calls.call import (
    BARE_CALL,
    MOST_CALLS,
    CallText,
    MalformedCall,
    ToolCall,
    UnreadableError,
    call_of,
    decode,
    value_end,
)
from tinkergym.tool_calls.thoughts import CallSpan, FindCall, thought_end

Syntax = Literal["hermes", "xml", "json", "native"]
"""`native`: the format of the model's own chat template. The agent loop parses these calls, with the
template's `CallGrammar`, and passes them on as `CallText`."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^<>\s]{1,128})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,128})>")
_PARAMETER_END = "</parameter>"
_FUNCTION_END = re.compile(r"\s*</function>")
_AFTER_VALUE = re.compile(r"\s*(?:<parameter=[^<>\n]{1,128}>|</function>)")
_BARE = re.compile(rf"^[ \t]*(?={BARE_CALL})", re.MULTILINE)
_SHOWN_CHARACTERS = 200

_Read = tuple[ToolCall | MalformedCall, int, int]
"""A call, where it begins, and how far it was read."""


def parse_calls(text: str, syntax: Syntax) -> list[ToolCall | MalformedCall]:
    """Return the calls of an answer in order; none for a plain answer.

    Reasoning is ignored, because it may mention calls that are not made.

    Args:
        text: Any text.
        syntax: The syntax that the model was told to use.
    """
    if syntax == "native" and isinstance(text, CallText):
        return list(text.calls)
    begin = thought_end(text, _finder(syntax))
    calls: list[ToolCall | MalformedCall] = []
    for call, _, _ in _PARSERS[syntax](text, begin) if begin >= 0 else ():
        if len(calls) == MOST_CALLS:
            calls.append(MalformedCall(f"more than {MOST_CALLS} calls in one answer; the rest was ignored"))
            break
        calls.append(call)
    return calls


def render_calls(calls: Sequence[ToolCall], syntax: Syntax) -> str:
    """Write calls as a model should; `parse_calls` is the inverse.

    Raises:
        ValueError: A text contains its own end tag in the `xml` syntax, which has no escapes.
    """
    return "\n".join(_WRITERS[syntax](call) for call in calls)


def render_result(name: str, text: str, syntax: Syntax) -> str:
    """Write the result of a call, for an observation that is one text."""
    if syntax == "json":
        return json.dumps({"tool": name, "result": text}, ensure_ascii=False)
    return f"<tool_response>\n{text}\n</tool_response>"


def typed_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the texts of an `xml` or `native` call as JSON if the tool's schema expects other than text.

    Args:
        arguments: Texts by name.
        parameters: The tool's JSON schema.
    """
    properties = parameters.get("properties", {})
    return {name: _typed(value, properties.get(name, {})) for name, value in arguments.items()}


def _called(value: Any) -> ToolCall | MalformedCall:
    try:
        # Ids are of no use here: results are told apart by their order.
        return replace(call_of(value), id="")
    except UnreadableError as error:
        return MalformedCall(error.problem)


# --- the three syntaxes ---


def _hermes(text: str, position: int) -> Iterator[_Read]:
    while (opening := text.find(_OPEN, position)) >= 0:
        start = opening + len(_OPEN)
        try:
            value, end = decode(text, start)
        except UnreadableError as error:
            yield MalformedCall(error.problem), opening, error.reaches(text, start)
            if error.read_to is None:
                return
            end = error.read_to
        else:
            closing = text.find(_CLOSE, end)
            between = text[end : closing if closing >= 0 else end + _SHOWN_CHARACTERS]
            if between.strip():
                problem = f"the JSON object is followed by {between.strip()[:40]!r}, not {_CLOSE}"
                yield MalformedCall(problem), opening, end
            else:
                # An answer may end with the stop token instead of the closing tag.
                yield _called(value), opening, end
        closing = text.find(_CLOSE, end)
        if closing < 0:
            return
        position = closing + len(_CLOSE)


def _xml(text: str, position: int) -> Iterator[_Read]:
    while (opening := text.find(_OPEN, position)) >= 0:
        call, end = _xml_call(text, opening + len(_OPEN))
        yield call, opening, end
        closing = text.find(_CLOSE, end)
        if closing < 0:
            return
        position = closing + len(_CLOSE)


def _xml_call(text: str, position: int) -> tuple[ToolCall | MalformedCall, int]:
    """Parse one call and return it with where parsing stopped."""
    function = _FUNCTION.match(text, position)
    if function is None:
        return MalformedCall(f"{_OPEN} is not followed by <function=name>"), position
    position = function.end()
    arguments: dict[str, Any] = {}
    while (parameter := _PARAMETER.match(text, position)) is not None:
        end = value_end(text, parameter.end(), _PARAMETER_END, _AFTER_VALUE)
        if end < 0:
            return MalformedCall(f"<parameter={parameter[1]}> has no {_PARAMETER_END}"), len(text)
        value = text[parameter.end() : end]
        # The line breaks next to the tags belong to the syntax, all others to the value.
        arguments[parameter[1]] = value.removeprefix("\n").removesuffix("\n")
        position = end + len(_PARAMETER_END)
    closing = _FUNCTION_END.match(text, position)
    if closing is None:
        return MalformedCall("the parameters are not followed by </function>"), position
    if not is_unicode("".join([*arguments, *arguments.values()])):
        return MalformedCall(
            "the call contains a lone surrogate, which is not valid Unicode text"
        ), closing.end()
    return ToolCall(function[1], arguments), closing.end()


def _bare(text: str, position: int) -> Iterator[_Read]:
    while (found := _BARE.search(text, position)) is not None:
        start = found.end()
        try:
            value, position = decode(text, start)
        except UnreadableError as error:
            yield MalformedCall(error.problem), start, error.reaches(text, start)
            if error.read_to is None:
                return
            position = max(error.read_to, start + 1)
        else:
            for one in value if isinstance(value, list) else [value]:
                yield _called(one), start, position


def _finder(*syntaxes: Syntax) -> FindCall:
    def find_call(text: str, position: int) -> CallSpan | None:
        found = [
            CallSpan(start, end, isinstance(call, MalformedCall))
            for syntax in syntaxes
            for call, start, end in islice(_PARSERS[syntax](text, position), 1)
        ]
        return min(found, default=None, key=lambda span: (span.start, span.is_malformed))

    return find_call


def find_any_call(text: str, position: int) -> CallSpan | None:
    """Return the first call from a position in any of the syntaxes; None if there is none."""
    return _finder("hermes", "xml", "json")(text, position)


def _write_json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, allow_nan=False)


def _write_hermes(call: ToolCall) -> str:
    return f"{_OPEN}\n{_write_json(call)}\n{_CLOSE}"


def _write_xml(call: ToolCall) -> str:
    lines = [_OPEN, f"<function={call.name}>"]
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        written = f"{text}\n{_PARAMETER_END}\n</function>"
        if value_end(written, 0, _PARAMETER_END, _AFTER_VALUE) != len(text) + 1:
            raise ValueError(
                f"the argument {name} contains {_PARAMETER_END}, which the xml syntax cannot represent"
            )
        lines += [f"<parameter={name}>", text, _PARAMETER_END]
    return "\n".join([*lines, "</function>", _CLOSE])


def _typed(value: Any, schema: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or _takes_text(schema):
        return value
    try:
        decoded, end = decode(value, 0)
    except UnreadableError:
        return value
    return decoded if not value[end:].strip() else value


def _takes_text(schema: Mapping[str, Any]) -> bool:
    options = schema.get("anyOf")
    if options:
        return any(_takes_text(option) for option in options)
    if "enum" in schema or "const" in schema:
        return any(isinstance(value, str) for value in schema.get("enum", [schema.get("const")]))
    return bool(schema.get("type", "string") == "string")


_PARSERS: Mapping[Syntax, Callable[[str, int], Iterator[_Read]]] = {
    "hermes": _hermes,
    "xml": _xml,
    "json": _bare,
    "native": _hermes,
}
_WRITERS = {"hermes": _write_hermes, "xml": _write_xml, "json": _write_json, "native": _write_hermes}
