"""Structured output: answers that cannot be anything but what a pattern or a schema allows."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.model import Choice
from tinkergym.user_code.quoting import quoted

_LONGEST_SCHEMA = 65_536
"""Characters of JSON."""


class Regex(Choice):
    """The whole answer matches a regular expression."""

    kind: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=4096)
    """Without look-around and back-references, which the engine refuses."""


class JsonSchema(Choice):
    """The answer is JSON that a JSON schema allows."""

    kind: Literal["json"] = "json"
    json_schema: dict[str, JsonValue]

    @field_validator("json_schema")
    @classmethod
    def _short_enough(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        length = len(json.dumps(value))
        if length > _LONGEST_SCHEMA:
            raise ValueError(
                f"json_schema has {length} characters, more than {_LONGEST_SCHEMA}; "
                "describe less of the answer"
            )
        return value


Structured = Annotated[Regex | JsonSchema, Field(discriminator="kind")]


def require_structured(value: object) -> Regex | JsonSchema | None:
    """Return what a script gave as `structured`, checked.

    Raises:
        InvalidRequestError: It is something else.
    """
    if value is None or isinstance(value, Regex | JsonSchema):
        return value
    raise InvalidRequestError(
        f"must be a Regex or a JsonSchema of tinkergym.schema, not {quoted(value)}",
        hint='write Regex(pattern="[0-8]") or JsonSchema(json_schema={...})',
        field="structured",
    )
