"""Structured output: completions constrained by a pattern or a schema.

The engine compiles them for its whole vocabulary, with no limit of its own. So their size is limited in each
way that makes it take minutes: with xgrammar 0.2.8 and 32,000 tokens, `[a-z]?` takes 2 to 3 s of a core 32
times and more than 15 s 64 times, and so do `(?:[a-z]*){160}` and 900 levels. A large count of one character
does not: `[a-z]{1000000000}` takes 0.1 s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from tinkergym.schema.model import Choice
from tinkergym.schema.refusals import Refusal

_LONGEST_SCHEMA = 65_536
"""Characters of JSON."""
_MOST_NESTED = 64
_MOST_PROPERTIES = 500
_MOST_COUNTED_PROPERTIES = 64
"""Of one object with `minProperties` or `maxProperties`."""
_MOST_REPETITIONS = 32
"""Optional and repeated parts, in all patterns together; a repeated group that ends so counts each time."""
_MOST_BOUNDS = 16
"""Different combinations of limits of strings, arrays and objects."""
_BOUNDS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Their values map names to schemas."""
_DATA = frozenset({"const", "enum", "examples", "default"})
"""Their values are no schemas."""
# As in ECMAScript, where `[]` is a whole class. One without its end reaches to the pattern's end.
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)", re.DOTALL)
_GROUP = re.compile(r"\(\?(?::|P?<\w+>)")
# As xgrammar ignores anchors within a pattern, `($|a)` is `a?` to it. Counts of one character cost little,
# and the `?` after a quantifier changes nothing.
_FREE = re.compile(r"[\^$]|(?<=[^()|])\{\d+(?:,\d*)?\}\??|(?<=[*+?}])\?")
_REPETITION = re.compile(r"(?<!\()[*+?{]|(?<=[(|])[|)]|^\||\|$")
_REPEATED_GROUP = re.compile(r"[*?]\)+\{(\d+)(?:,(\d*))?\}")


class Regex(Choice):
    """The whole completion matches a regular expression."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=4096)
    """No look-around or back-references, which the engine refuses, and at most 32 optional or repeated parts:
    `?`, `*`, `+`, empty alternatives and repeated groups. Counts of one character, as in `[0-9]{4}`, are
    free."""

    @field_validator("pattern")
    @classmethod
    def _compiles_soon(cls, value: str) -> str:
        _refuse_more(_repetitions(value), _MOST_REPETITIONS, _REPEATED)
        return value


class JsonSchema(Choice):
    """The completion is JSON that matches a JSON schema."""

    kind: Literal["json"] = "json"
    json_schema: dict[str, JsonValue]

    @field_validator("json_schema")
    @classmethod
    def _compiles_soon(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        parts = list(_schemas_in(value))  # not too deep, so that it can be written
        _refuse_more(len(json.dumps(value)), _LONGEST_SCHEMA, "characters")
        properties, repetitions = 0, 0
        bounds = set()
        for part in parts:
            found = part.get("properties")
            count = len(found) if isinstance(found, dict) else 0
            if "minProperties" in part or "maxProperties" in part:
                _refuse_more(count, _MOST_COUNTED_PROPERTIES, "properties in an object that counts them")
            properties += count
            repetitions += sum(map(_repetitions, _patterns(part)))
            limits = [(name, part[name]) for name in sorted(_BOUNDS & part.keys())]
            bounds.add(tuple((name, limit) for name, limit in limits if isinstance(limit, int | float)))
        _refuse_more(properties, _MOST_PROPERTIES, "properties")
        _refuse_more(repetitions, _MOST_REPETITIONS, f"{_REPEATED} in its patterns")
        same = "use the same limits in several places"
        _refuse_more(len(bounds - {()}), _MOST_BOUNDS, "different combinations of lengths and counts", same)
        return value


Structured = Annotated[Regex | JsonSchema, Field(discriminator="kind")]


_REPEATED = "optional or repeated parts"


def _refuse_more(count: int, most: int, what: str, hint: str = "simplify it") -> None:
    if count > most:
        raise Refusal(
            "", f"has {count} {what}, more than the limit of {most}", hint, "too_long"
        ).in_validator()


def _schemas_in(schema: JsonValue) -> Iterator[Mapping[str, JsonValue]]:
    """Return a schema's objects whose keys are keywords, however they are nested."""
    level, depth = [(schema, "schema")], 0
    while level:
        _refuse_more(depth, _MOST_NESTED, "levels")
        below: list[tuple[JsonValue, str]] = []
        for part, kind in level:
            if isinstance(part, list):
                below += [(one, kind) for one in part]
            elif isinstance(part, dict) and kind == "schema":
                yield part
                below += [(one, _kind_of(name)) for name, one in part.items()]
            elif isinstance(part, dict):
                below += [(one, "schema" if kind == "names" else "data") for one in part.values()]
        level, depth = below, depth + 1


def _kind_of(keyword: str) -> str:
    return "names" if keyword in _NAMES else "data" if keyword in _DATA else "schema"


def _patterns(part: Mapping[str, JsonValue]) -> Iterator[str]:
    pattern, named = part.get("pattern"), part.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(named, dict):
        yield from named


def _repetitions(pattern: str) -> int:
    plain = _FREE.sub("", _GROUP.sub("(", _ESCAPE_OR_CLASS.sub("x", pattern)))
    again = sum(max(int(least), int(most or 0)) for least, most in _REPEATED_GROUP.findall(plain))
    return len(_REPETITION.findall(plain)) + again
