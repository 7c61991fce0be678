"""Structured output: completions constrained by a pattern or a schema.

The engine compiles them for its whole vocabulary, with no limit of its own. So their size is limited in each
way that makes it take minutes: with xgrammar 0.2.8 and 32,000 tokens, `[a-z]?` takes 2 s of a core 32 times
and more than 15 s 64 times, and so do 900 levels. Large counts do not: `[a-z]{1000000000}` takes 0.1 s.
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
"""Quantifiers and empty alternatives, in all patterns together."""
_MOST_BOUNDS = 16
"""Different limits of strings, arrays and objects."""
_BOUNDS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
# As in ECMAScript, where `[]` is a whole class. One without its end reaches to the pattern's end.
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)", re.DOTALL)
_GROUP = re.compile(r"\(\?(?::|P?<\w+>)")
_REPETITION = re.compile(r"(?<!\()[*+?{]|(?<=[(|])[|)]|^\||\|$")


class Regex(Choice):
    """The whole completion matches a regular expression."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=4096)
    """No look-around or back-references, which the engine refuses, and at most 32 quantifiers."""

    @field_validator("pattern")
    @classmethod
    def _compiles_soon(cls, value: str) -> str:
        _refuse_more(_repetitions(value), _MOST_REPETITIONS, "quantifiers")
        return value


class JsonSchema(Choice):
    """The completion is JSON that matches a JSON schema."""

    kind: Literal["json"] = "json"
    json_schema: dict[str, JsonValue]

    @field_validator("json_schema")
    @classmethod
    def _compiles_soon(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        properties, repetitions = 0, 0
        bounds = set()
        for part in _objects_in(value):
            found = part.get("properties")
            count = len(found) if isinstance(found, dict) else 0
            if "minProperties" in part or "maxProperties" in part:
                _refuse_more(count, _MOST_COUNTED_PROPERTIES, "properties in an object that counts them")
            properties += count
            repetitions += sum(map(_repetitions, _patterns(part)))
            bounds.add(tuple((name, str(part[name])) for name in sorted(_BOUNDS & part.keys())))
        _refuse_more(properties, _MOST_PROPERTIES, "properties")
        _refuse_more(repetitions, _MOST_REPETITIONS, "quantifiers in its patterns")
        _refuse_more(len(bounds - {()}), _MOST_BOUNDS, "different lengths and counts")
        _refuse_more(len(json.dumps(value)), _LONGEST_SCHEMA, "characters")
        return value


Structured = Annotated[Regex | JsonSchema, Field(discriminator="kind")]


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        reason = f"has {count} {what}, more than the limit of {most}"
        raise Refusal("", reason, "simplify it", "too_long").in_validator()


def _objects_in(schema: JsonValue) -> Iterator[Mapping[str, JsonValue]]:
    """Return all objects of a schema, however they are nested."""
    level, depth = [schema], 0
    while level:
        _refuse_more(depth, _MOST_NESTED, "levels")
        below: list[JsonValue] = []
        for part in level:
            if isinstance(part, dict):
                yield part
                below += part.values()
            elif isinstance(part, list):
                below += part
        level, depth = below, depth + 1


def _patterns(part: Mapping[str, JsonValue]) -> Iterator[str]:
    pattern, named = part.get("pattern"), part.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(named, dict):
        yield from named


def _repetitions(pattern: str) -> int:
    plain = _GROUP.sub("(", _ESCAPE_OR_CLASS.sub("x", pattern))
    return len(_REPETITION.findall(plain))
