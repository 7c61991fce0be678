"""Structured output: completions constrained by a pattern or a schema."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from tinkergym.schema.model import Choice
from tinkergym.schema.refusals import Refusal

_LONGEST_SCHEMA = 65_536
"""Characters of JSON."""


class Regex(Choice):
    """The whole completion matches a regular expression."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=4096)
    """No look-around or back-references, which the engine refuses."""


class JsonSchema(Choice):
    """The completion is JSON that matches a JSON schema."""

    kind: Literal["json"] = "json"
    json_schema: dict[str, JsonValue]

    @field_validator("json_schema")
    @classmethod
    def _short_enough(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        length = len(json.dumps(value))
        if length > _LONGEST_SCHEMA:
            reason = f"has {length} characters, more than the limit of {_LONGEST_SCHEMA}"
            raise Refusal("", reason, "simplify it", "too_long").in_validator()
        return value


Structured = Annotated[Regex | JsonSchema, Field(discriminator="kind")]
