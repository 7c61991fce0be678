"""JSON schemas of spaces: the output of `to_json` in JSON Schema (draft 2020-12)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.messages import MOST_NAME_CHARACTERS
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.visitor import SpaceVisitor, dtype_name

Schema = dict[str, Any]


def json_schema(space: spaces.Space[Any]) -> Schema:
    """Return the schema of a space's values as `to_json` writes them.

    Raises:
        InvalidSpaceError: The space, or one inside it, has no JSON form.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_Schemas().visit(space)}


class _Schemas(SpaceVisitor[Schema]):
    def text(self, space: spaces.Text) -> Schema:
        schema = {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
        if type(space) is spaces.Text:
            schema["pattern"] = f"^[{''.join(map(re.escape, space.character_list))}]*$"
        return schema

    def chat(self, space: Chat) -> Schema:
        name = {"type": "string", "minLength": 1, "maxLength": MOST_NAME_CHARACTERS}
        function = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}}}
        one = {"type": "object", "properties": {"function": {**function, "required": ["name"]}}}
        functions = {"type": "array", "items": {**one, "required": ["function"]}}
        message = {
            "type": "object",
            "properties": {
                "role": {"enum": list(space.roles)},
                "content": self.text(space.content),
                "name": name,
                "tool_call_id": name,
                "tool_calls": functions,
                "tools": functions,
            },
            "required": ["role", "content"],
            "additionalProperties": False,
        }
        return {
            "type": "array",
            "items": message,
            "minItems": space.min_messages,
            "maxItems": space.max_messages,
        }

    def image(self, space: Image) -> Schema:
        del space
        return {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}

    def box(self, space: spaces.Box) -> Schema:
        dtype_name(space)
        return _array(space.low, space.high)

    def discrete(self, space: spaces.Discrete) -> Schema:
        start = int(space.start)
        return {"type": "integer", "minimum": start, "maximum": start + int(space.n) - 1}

    def multi_discrete(self, space: spaces.MultiDiscrete) -> Schema:
        return _array(space.start, space.start + (space.nvec - 1))

    def multi_binary(self, space: spaces.MultiBinary) -> Schema:
        return _array(np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8))

    def dict(self, space: spaces.Dict) -> Schema:
        return {
            "type": "object",
            "properties": {key: self.visit(inner) for key, inner in space.spaces.items()},
            "required": list(space.spaces),
            "additionalProperties": False,
        }

    def tuple(self, space: spaces.Tuple[Any]) -> Schema:
        return _fixed([self.visit(inner) for inner in space.spaces])

    def sequence(self, space: spaces.Sequence) -> Schema:
        return {"type": "array", "items": self.visit(space.feature_space)}

    def one_of(self, space: spaces.OneOf[Any]) -> Schema:
        return {"oneOf": [_fixed([{"const": i}, self.visit(inner)]) for i, inner in enumerate(space.spaces)]}

    characters = text


def _array(low: Any, high: Any) -> Schema:
    """Return the schema of an array between two bounds, per row only if the rows differ."""
    if np.ndim(low) == 0:
        return _number(low, high)
    if len(low) and (not (low == low[0]).all() or not (high == high[0]).all()):
        return _fixed([_array(*bounds) for bounds in zip(low, high, strict=True)])
    items = {"items": _array(low[0], high[0])} if len(low) else {}
    return {"type": "array", **items, "minItems": len(low), "maxItems": len(low)}


def _fixed(items: list[Schema]) -> Schema:
    # An empty prefixItems is not allowed.
    prefix = {"prefixItems": items, "items": False} if items else {}
    return {"type": "array", **prefix, "minItems": len(items), "maxItems": len(items)}


def _number(low: Any, high: Any) -> Schema:
    kind = np.asarray(low).dtype.kind
    if kind == "b":
        return {"type": "boolean"} if low != high else {"const": bool(low)}
    schema: Schema = {"type": "number" if kind == "f" else "integer"}
    if low != -np.inf:
        schema["minimum"] = low.item()
    if high != np.inf:
        schema["maximum"] = high.item()
    infinities = [word for word, bound in (("-Infinity", low), ("Infinity", high)) if np.isinf(bound)]
    return {"anyOf": [schema, {"enum": infinities}]} if infinities else schema
