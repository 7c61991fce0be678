"""A call of a tool, and JSON as models write it: all formats of calls yield the same `ToolCall`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.basics.user_json import refuse_constant

MOST_CALLS = 64
"""The most calls read from one answer."""

THINKING, THOUGHT = "<think>", "</think>"
BARE_CALL = r'(?:\[\s*)?\{\s*"(?:name|arguments|parameters|type|function)"\s*:'
"""How JSON begins that is a call: an answer such as {1, 2} must not be taken for one."""
_PROBLEM_CHARACTERS = 200
_MOST_MARKS = 1000
"""How many closing marks one value may contain."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call. Whether there is such a tool is not known here."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    """JSON values; if the format writes values separately, text to be parsed by the tool's schema."""
    id: str = ""
    """As written by the policy; most formats have none."""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that was meant as a call but cannot be parsed."""

    problem: str
    """The problem, in words for the model."""
    text: str = ""
    """What was written instead of a call, where it is shown again."""


class CallText(str):
    """An action whose calls have been parsed, for an environment in this process or a child of it.

    Elsewhere only the text arrives, which has the calls in the syntax `hermes`.
    """

    calls: tuple[ToolCall, ...]

    def __new__(cls, text: str, calls: Sequence[ToolCall]) -> CallText:
        """Return the text with its calls."""
        made = super().__new__(cls, text)
        made.calls = tuple(calls)
        return made

    def __reduce__(self) -> Any:
        """Keep the calls in another process."""
        return CallText, (str(self), self.calls)


class UnreadableError(Exception):
    """There is no call, or no JSON value, here."""

    def __init__(self, problem: str, read_to: int | None = None, *, in_text: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.read_to = read_to
        """How far the text was read; None if unknown, and then the rest is not read either."""
        self.in_text = in_text
        """Whether a value has no end, so that all of the rest may belong to it."""

    def reaches(self, text: str, start: int) -> int:
        """Return how far into the text the call may extend that began at `start`."""
        return len(text) if self.in_text else max(start, self.read_to or start)


# Not strict: models write line breaks into strings, most often in code.
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)


def decode(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at a position and where it ends.

    Raises:
        UnreadableError: There is none.
    """
    position = skip(text, position)
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        around = text[max(position, error.pos - 20) : error.pos + 20]
        problem = f"the JSON is invalid at {around!r}: {error.msg}" if around else "there is no JSON"
        open_text = error.msg.startswith("Unterminated string")
        raise UnreadableError(problem, error.pos, in_text=open_text) from None
    except RecursionError:
        raise UnreadableError("the JSON is nested too deeply") from None
    except ValueError as error:  # A very long number, or NaN.
        raise UnreadableError(f"the JSON is invalid: {error}"[:_PROBLEM_CHARACTERS]) from None


def value_end(text: str, position: int, closing: str, after: re.Pattern[str]) -> int:
    """Return where a value ends that is written without escapes, before its closing mark; -1 if nowhere.

    A value may contain the mark itself. It ends at the first that is followed by what can follow a value,
    else at the first.
    """
    end = first = text.find(closing, position)
    for _ in range(_MOST_MARKS):
        if end < 0 or after.match(text, end + len(closing)):
            break
        end = text.find(closing, end + len(closing))
    else:
        end = -1
    return first if end < 0 else end


def skip(text: str, position: int) -> int:
    """Return where white space ends."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def call_of(value: Any) -> ToolCall:
    """Return a decoded object as a call.

    Raises:
        UnreadableError: It is none.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {"id": value.get("id"), **value["function"]}
    if not isinstance(value, dict):
        raise UnreadableError('a call must be an object: {"name": ..., "arguments": {...}}')
    given = value.get("arguments")
    return checked(value.get("name"), value.get("parameters") if given is None else given, value.get("id"))


def checked(name: Any, arguments: Any, call_id: Any = "") -> ToolCall:
    """Return a call with this name and arguments; an invalid id is left out.

    Models write null, or nothing, as the arguments of a tool that has none.

    Raises:
        UnreadableError: They are not those of a call.
    """
    if not isinstance(name, str) or not name:
        raise UnreadableError('the call has no text "name"')
    if isinstance(arguments, str):
        try:
            arguments, _ = decode(arguments or "{}", 0)
        except UnreadableError as error:
            raise UnreadableError(f'"arguments": {error.problem}') from None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise UnreadableError('"arguments" is not an object')
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise UnreadableError("the call is not valid Unicode text") from None
    named = isinstance(call_id, str) and re.fullmatch(r"[\w-]{1,64}", call_id)
    return ToolCall(name, arguments, call_id if named else "")
