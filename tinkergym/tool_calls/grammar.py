"""Call grammar: the format of a chat template's tool calls, derived from the template itself.

No template describes how to parse its calls, so a few example calls are rendered and split. A grammar is only
used if it parses all calls with which the template was tested.

Pure functions that never raise on any text: an attempted call that cannot be parsed is a `MalformedCall`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tinkergym.errors import TemplateError
from tinkergym.tool_calls.call import (
    BARE_CALL,
    MOST_CALLS,
    MalformedCall,
    ToolCall,
    UnreadableError,
    call_of,
    checked,
    decode,
    skip,
    value_end,
)
from tinkergym.tool_calls.thoughts import CallSpan, thought_end

_NAME, _KEY, _VALUE = "tgName7f3a", "tgKey7f3a", "tgValue7f3a"
_OTHER_KEY, _OTHER_VALUE = "tgOther7f3a", "tgMore7f3a"
_TRIED: tuple[Mapping[str, Any], ...] = (
    {_KEY: _VALUE},
    {},
    {"text": 'two "quoted"\nlines {', "n": 3, "list": [1, {"a": "b"}], "yes": True},
)
_MOST_NAME_CHARACTERS = 256
_MOST_EXAMPLE_CHARACTERS = 10_000
"""Of a template's example calls: each bracket may begin one, and is then read to the end."""
_NAME_OF_PAIRS = re.compile(r"\s*([^<>\s]{1,256})")
_ONE_NAME = re.compile(r"[^<>\s]*")


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A parsed answer."""

    content: str
    """The text before the first call; the whole answer without calls."""
    calls: tuple[ToolCall | MalformedCall, ...] = ()


Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Renders an answer with these calls, in the format of OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGrammar:
    """The format of calls: their start, their end, and how name and arguments are written in between."""

    kind: Literal["object", "named", "pairs"]
    """A JSON object with the name in it; the name, then JSON; or the name, then each argument separately."""
    opening: str
    """The start of a call, without surrounding white space; may be empty for an object."""
    closing: str
    between: str = ""
    """The text between the name and what follows it."""
    key_opening: str = ""
    value_opening: str = ""
    value_closing: str = ""
    lines: bool = False
    """Whether each value is on separate lines."""
    single: bool = False
    """Whether the template writes only one call per answer."""

    def read(self, text: str) -> ReadAnswer:
        """Parse an answer. Thoughts are content.

        Args:
            text: The answer's text, without the tokens that end it.
        """
        begin = thought_end(text, self._find_call)
        start = self._start(text, begin) if begin >= 0 else -1
        if start < 0:
            return ReadAnswer(text)
        most = 1 if self.single else MOST_CALLS
        calls: list[ToolCall | MalformedCall] = []
        for call, end in self._calls(text, start):
            calls.append(call)
            if len(calls) == most and self._start(text, end) >= 0:
                calls.append(MalformedCall(f"more than {most} calls in one answer", text[end:]))
            if len(calls) >= most:
                break
        return ReadAnswer(text[:start], tuple(calls))

    def closed_calls(self, text: str) -> list[ToolCall]:
        """Return the calls at the start of a text that are complete, whatever follows it.

        Args:
            text: The beginning of an answer whose reasoning, if it has any, is not still open.
        """
        begin = thought_end(text, self._find_call)
        start = self._start(text, begin) if begin >= 0 else -1
        calls: list[ToolCall] = []
        # Without a closing mark, another argument may follow the last one.
        for call, end in self._calls(text, start) if self.closing or self.kind != "pairs" else ():
            is_closed = text.endswith(self.closing, 0, end)
            if isinstance(call, MalformedCall) or not is_closed or len(calls) == MOST_CALLS:
                break
            calls.append(call)
            if self.single:
                break
        return calls

    def _find_call(self, text: str, position: int) -> CallSpan | None:
        start = self._start(text, position)
        if start < 0:
            return None
        inside = start + len(self.opening)
        try:
            _, end = self._READERS[self.kind](self, text, inside)
            return CallSpan(start, self._closed(text, end), is_malformed=False)
        except UnreadableError as error:
            return CallSpan(start, error.reaches(text, inside), is_malformed=True)

    def _start(self, text: str, position: int) -> int:
        if self.opening:
            return text.find(self.opening, position)
        rest = text[position:]
        bare = rest.lstrip()
        called = re.match(BARE_CALL, bare)
        return position + len(rest) - len(bare) if called else -1

    def _calls(self, text: str, position: int) -> Iterator[tuple[ToolCall | MalformedCall, int]]:
        while position >= 0:
            inside = position + len(self.opening)
            try:
                calls, end = self._READERS[self.kind](self, text, inside)
                end = self._closed(text, end)
            except UnreadableError as error:
                close = text.find(self.closing, inside) if self.closing else -1
                end = len(text) if close < 0 else close + len(self.closing)
                written = text[inside : close if close >= 0 else len(text)]
                yield MalformedCall(error.problem, written), end
            else:
                for call in calls:
                    yield call, end
            position = self._start(text, end)

    def _closed(self, text: str, end: int) -> int:
        """Return where a call ends; an answer may end with the stop token instead of the call's end."""
        rest = text[end:]
        begun = rest.lstrip()
        if not self.closing:
            return end
        if begun.startswith(self.closing):
            return end + len(rest) - len(begun) + len(self.closing)
        if begun and not self.closing.startswith(begun):
            raise UnreadableError(f"the call is followed by {begun[:40]!r}, not {self.closing}")
        return len(text)

    # --- the three kinds ---

    def _object(self, text: str, position: int) -> tuple[list[ToolCall], int]:
        value, end = decode(text, position)
        return [_short(call_of(one)) for one in (value if isinstance(value, list) else [value])], end

    def _named(self, text: str, position: int) -> tuple[list[ToolCall], int]:
        start = text.find(self.between or "{", position)
        if start < 0:
            raise UnreadableError("the name is not followed by its arguments")
        name = text[position:start].strip()
        # A thought that mentions the mark is followed by anything, up to the next call's arguments.
        if not _ONE_NAME.fullmatch(name) or (self.opening and self.opening in name):
            raise UnreadableError("there is no name")
        arguments, end = decode(text, start + len(self.between))
        return [_short(checked(name, arguments))], end

    @property
    def _after_value(self) -> re.Pattern[str]:
        marks = [re.escape(self.key_opening), re.escape(self.closing) if self.closing else r"\Z"]
        return re.compile(rf"\s*(?:{'|'.join(marks)}|\Z)")

    def _pairs(self, text: str, position: int) -> tuple[list[ToolCall], int]:
        head = _NAME_OF_PAIRS.match(text, position)
        if head is None:
            raise UnreadableError("there is no name")
        position = head.end()
        if self.between:
            position = _past(text, self.between, position)
        arguments: dict[str, Any] = {}
        while text.startswith(self.key_opening, skip(text, position)):
            start = skip(text, position) + len(self.key_opening)
            middle = text.find(self.value_opening, start)
            inside = middle + len(self.value_opening)
            end = value_end(text, inside, self.value_closing, self._after_value) if middle >= 0 else -1
            if end < 0:
                raise UnreadableError("a value does not end", start, in_text=True)
            value = text[inside:end]
            if self.lines:
                # The line breaks next to the marks belong to the template, all others to the value.
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[text[start:middle].strip()] = value
            position = end + len(self.value_closing)
        return [_short(checked(head[1], arguments))], position

    _READERS = {"object": _object, "named": _named, "pairs": _pairs}  # noqa: RUF012 - never changed


def grammar_of(render: Render) -> CallGrammar:
    """Return the grammar of a template's calls.

    Args:
        render: Renders calls with the template.

    Raises:
        TemplateError: The template does not show calls, or their format is not supported.
    """
    text = render([_written(_TRIED[0])])
    tried = (_infer_object, _infer_named, _infer_pairs) if len(text) <= _MOST_EXAMPLE_CHARACTERS else ()
    grammar = next((found for infer in tried if (found := infer(text, render))), None)
    if grammar is None or not _reads_back(grammar, render):
        raise TemplateError(
            "the chat template's format of tool calls is not supported, or it omits them",
            hint='describe the tools in the prompt instead: ToolCalling(env, tools, syntax="hermes")',
        )
    try:
        both = grammar.read(render([_written(_TRIED[0]), _written(_TRIED[1])]))
        several = len(both.calls) == 2 and not any(isinstance(one, MalformedCall) for one in both.calls)
    except TemplateError:
        several = False
    return replace(grammar, single=not several)


def _written(arguments: Mapping[str, Any], name: str = _NAME) -> dict[str, Any]:
    function = {"name": name, "arguments": dict(arguments)}
    # Mistral's templates require ids of nine letters and digits.
    return {"id": "call00000", "type": "function", "function": function}


def _infer_object(text: str, render: Render) -> CallGrammar | None:
    del render
    place = text.find(_NAME)
    for brace in [found.start() for found in re.finditer(r"[\[{]", text[: max(place, 0)])]:
        try:
            value, end = decode(text, brace)
            calls = [_short(call_of(one)) for one in (value if isinstance(value, list) else [value])]
        except UnreadableError:
            continue
        if [one.name for one in calls] == [_NAME]:
            return CallGrammar(kind="object", opening=text[:brace].strip(), closing=text[end:].strip())
    return None


def _infer_named(text: str, render: Render) -> CallGrammar | None:
    del render
    before, found, after = text.partition(_NAME)
    brace = after.find("{")
    if not found or brace < 0 or not before.strip():
        return None
    try:
        arguments, end = decode(after, brace)
    except UnreadableError:
        return None
    if arguments != _TRIED[0]:
        return None
    between = after[:brace].strip()
    return CallGrammar(kind="named", opening=before.strip(), closing=after[end:].strip(), between=between)


def _infer_pairs(text: str, render: Render) -> CallGrammar | None:
    """Derive the marks around arguments from one call with one and one with two of them."""
    parts = _split(text, _NAME, _KEY, _VALUE)
    two = render([_written({_KEY: _VALUE, _OTHER_KEY: _OTHER_VALUE})])
    more = _split(two, _NAME, _KEY, _VALUE, _OTHER_KEY, _OTHER_VALUE)
    if parts is None or more is None or not parts[0].strip():
        return None
    before, head, middle, tail = parts
    next_one = more[3]
    place = head.rfind("<")
    key_opening = head[place:].strip() if place >= 0 else ""
    if not key_opening or not next_one.strip().endswith(key_opening):
        return None
    value_closing = next_one.strip().removesuffix(key_opening).strip()
    if not value_closing or not tail.strip().startswith(value_closing) or not middle.strip():
        return None
    return CallGrammar(
        kind="pairs",
        opening=before.strip(),
        closing=tail.strip().removeprefix(value_closing).strip(),
        between=head[:place].strip(),
        key_opening=key_opening,
        value_opening=middle.strip(),
        value_closing=value_closing,
        lines=middle.endswith("\n"),
    )


def _split(text: str, *marks: str) -> list[str] | None:
    parts = []
    for mark in marks:
        part, found, text = text.partition(mark)
        if not found:
            return None
        parts.append(part)
    return [*parts, text]


def _reads_back(grammar: CallGrammar, render: Render) -> bool:
    for arguments in _TRIED:
        try:
            read = grammar.read(render([_written(arguments, "a_tool")])).calls
        except TemplateError:
            return False
        if len(read) != 1 or isinstance(read[0], MalformedCall) or read[0].name != "a_tool":
            return False
        found = read[0].arguments
        if grammar.kind == "pairs":
            found = {name: _asdecode(value, arguments.get(name)) for name, value in found.items()}
        if found != dict(arguments):
            return False
    return True


def _asdecode(value: str, expected: Any) -> Any:
    """Return a text as the JSON value it represents, unless a text is expected; some write Python's True."""
    if isinstance(expected, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(value, value)


def _past(text: str, mark: str, position: int) -> int:
    position = skip(text, position)
    if not text.startswith(mark, position):
        raise UnreadableError(f"{mark} is missing")
    return position + len(mark)


def _short(call: ToolCall) -> ToolCall:
    if len(call.name) > _MOST_NAME_CHARACTERS:
        raise UnreadableError("the name is too long")
    return call
