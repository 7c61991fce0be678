"""JSON schemas of spaces: the output of `to_json` in JSON Schema (draft 2020-12)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.messages import MOST_NAME_CHARACTERS
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.documents import unsupported
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import DTYPES
from tinkergym.spaces.text import Text

Schema = dict[str, Any]


def json_schema(space: spaces.Space[Any]) -> Schema:
    """Return the schema of a space's values as `to_json` writes them.

    Raises:
        UnsupportedSpaceError: The space, or one inside it, has no JSON form.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(space)}


def _schema(space: spaces.Space[Any]) -> Schema:
    write = _WRITERS.get(type(space))
    if write is None:
        raise unsupported(space)
    return write(space)


def _text(space: spaces.Text) -> Schema:
    schema = {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
    if type(space) is spaces.Text:
        schema["pattern"] = f"^[{''.join(map(re.escape, space.character_list))}]*$"
    return schema


def _chat(space: Chat) -> Schema:
    name = {"type": "string", "minLength": 1, "maxLength": MOST_NAME_CHARACTERS}
    function = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}}}
    one = {"type": "object", "properties": {"function": {**function, "required": ["name"]}}}
    functions = {"type": "array", "items": {**one, "required": ["function"]}}
    message = {
        "type": "object",
        "properties": {
            "role": {"enum": list(space.roles)},
            "content": _text(space.content),
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


def _image(space: Image) -> Schema:
    del space
    return {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}


def _box(space: spaces.Box) -> Schema:
    if space.dtype not in DTYPES:
        raise unsupported(space)
    return _array(space.low, space.high)


def _discrete(space: spaces.Discrete) -> Schema:
    start = int(space.start)
    return {"type": "integer", "minimum": start, "maximum": start + int(space.n) - 1}


def _multi_discrete(space: spaces.MultiDiscrete) -> Schema:
    return _array(space.start, space.start + (space.nvec - 1))


def _multi_binary(space: spaces.MultiBinary) -> Schema:
    return _array(np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8))


def _dict(space: spaces.Dict) -> Schema:
    if not all(isinstance(key, str) for key in space.spaces):
        raise unsupported(space)
    return {
        "type": "object",
        "properties": {key: _schema(inner) for key, inner in space.spaces.items()},
        "required": list(space.spaces),
        "additionalProperties": False,
    }


def _tuple(space: spaces.Tuple[Any]) -> Schema:
    return _fixed([_schema(inner) for inner in space.spaces])


def _sequence(space: spaces.Sequence) -> Schema:
    if space.stack:
        raise unsupported(space)
    return {"type": "array", "items": _schema(space.feature_space)}


def _one_of(space: spaces.OneOf[Any]) -> Schema:
    return {"oneOf": [_fixed([{"const": i}, _schema(inner)]) for i, inner in enumerate(space.spaces)]}


_WRITERS: dict[type, Callable[[Any], Schema]] = {
    Text: _text,
    spaces.Text: _text,
    Chat: _chat,
    Image: _image,
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Dict: _dict,
    spaces.Tuple: _tuple,
    spaces.Sequence: _sequence,
    spaces.OneOf: _one_of,
}


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
