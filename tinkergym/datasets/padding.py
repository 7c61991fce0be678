"""Null keys that Arrow adds, taken out again.

A column of Arrow, so of Parquet and of `datasets`, gives each message, part, tool and call the keys of all
others, as null. Without these the same conversation is the same row in any container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.basics.user_json import read_json

_MEANT = ("default", "const")
"""Keys of a JSON Schema of which null may be the value."""
_VALUES = ("enum", "examples", "example", *_MEANT)
"""Keys of a JSON Schema that hold values, not schemas."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keys of a JSON Schema that hold schemas by name."""


def without_padding(row: Any) -> Any:
    """Return a row without null columns, and without null keys in messages, parts, tools and calls.

    Nulls that a schema means stay: in `enum` and `examples`, as the `default` of what is not required, and as
    the `const` of a schema that says nothing else: next to `type: null` it is redundant. So does the null
    argument of a call if the tool requires it and its schema allows null there.
    """
    if not isinstance(row, Mapping):
        return row
    kept = {name: value for name, value in row.items() if value is not None}
    if isinstance(kept.get("input"), Mapping):
        kept["input"] = without_padding(kept["input"])
    for name in ("tools", "functions"):
        if isinstance(kept.get(name), list | tuple):
            kept[name] = [_schema(tool) for tool in kept[name]]
    schemas: dict[str, Any] = {}
    for holder in (kept, kept.get("input")):
        if isinstance(holder, Mapping):
            schemas |= _parameters(holder.get("tools") or holder.get("functions"))
    for name, value in kept.items():
        if name in ("tools", "functions"):
            continue
        if isinstance(value, list | tuple):
            kept[name] = [_message(one, schemas) for one in value]
        elif isinstance(value, Mapping) and name != "input":
            kept[name] = _message(value, schemas)
    return kept


def _message(value: Any, schemas: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    kept = _present(value)
    if isinstance(kept.get("content"), list | tuple):
        kept["content"] = [_present(part) for part in kept["content"]]
    if isinstance(kept.get("tool_calls"), list | tuple):
        kept["tool_calls"] = [_call(call, schemas) for call in kept["tool_calls"]]
        if not kept["tool_calls"]:
            del kept["tool_calls"]
    if isinstance(kept.get("function_call"), Mapping):
        kept["function_call"] = _function(kept["function_call"], schemas)
    return kept


def _present(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: one for key, one in value.items() if one is not None}


def _call(call: Any, schemas: Mapping[str, Any]) -> Any:
    kept = _present(call)
    if isinstance(kept, dict) and isinstance(kept.get("function"), Mapping):
        kept["function"] = _function(kept["function"], schemas)
    return kept


def _function(function: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = _present(function)
    if isinstance(kept.get("arguments"), Mapping):
        kept["arguments"] = _arguments(kept["arguments"], schemas.get(str(kept.get("name")), {}))
    return kept


def _arguments(value: Any, schema: Any) -> Any:
    """Return the arguments of a call without the parameters of other calls.

    A call whose arguments are JSON in a string has none of these, and is not changed.
    """
    known = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, float) and _whole_by(known) and value.is_integer():
        return int(value)  # One column of Arrow makes 1 next to 2.5 the number 1.0.
    if isinstance(value, list | tuple):
        return [_arguments(one, known.get("items")) for one in value]
    if not isinstance(value, Mapping):
        return value
    properties = known.get("properties")
    own: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    needed = _names(known.get("required"))
    return {
        key: _arguments(one, own.get(key))
        for key, one in value.items()
        if one is not None or (key in needed and key in own and _allows_null(own[key]))
    }


def _whole_by(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return isinstance(kinds, list | tuple) and "integer" in kinds and "number" not in kinds


def has_whole_fraction(value: Any) -> bool:
    """Whether a value holds a number such as 1.0, which Arrow also makes of 1 next to 2.5."""
    if isinstance(value, Mapping):
        return any(map(has_whole_fraction, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_whole_fraction, value))
    return isinstance(value, float) and value.is_integer()


def _allows_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    if schema.get("nullable") is True or None in (schema.get("enum") or ()):
        return True
    choices = [one for key in ("anyOf", "oneOf") for one in schema.get(key) or ()]
    if choices:
        return any(map(_allows_null, choices))
    kinds = schema.get("type")
    return kinds is None or "null" in ([kinds] if isinstance(kinds, str) else kinds)


def _names(required: Any) -> Sequence[Any]:
    return required if isinstance(required, list | tuple) else ()


def _parameters(tools: Any) -> dict[str, Any]:
    """Return each tool's parameters by its name, as far as they can be read."""
    if isinstance(tools, str):
        try:
            tools = read_json(tools)
        except (ValueError, RecursionError):
            return {}
    found = {}
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found


def _schema(value: Any, *, required: bool = False) -> Any:
    if isinstance(value, list | tuple):
        return [_schema(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    said = any(one is not None for one in value.values())
    kept: dict[str, Any] = {}
    for key, one in value.items():
        if one is None:
            if (key == "const" and not said) or (key == "default" and not required):
                kept[key] = None
        elif key in _VALUES:
            kept[key] = one
        elif key in _NAMED and isinstance(one, Mapping):
            names = _names(value.get("required"))
            kept[key] = {
                name: _schema(property_, required=name in names)
                for name, property_ in one.items()
                if property_ is not None
            }
        else:
            kept[key] = _schema(one)
    return kept
