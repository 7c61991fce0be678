"""JSON as users write it: read strictly, so that no value is dropped or taken for another."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Python reads NaN and infinities as well, and of a key that is in an object twice the last value.

    Raises:
        ValueError: It is not valid JSON, or an object has a key twice with different values.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=_once)


def json_fault(error: Exception) -> str:
    """Describe the error in a line of a file with its column, without the parser's own line number.

    Args:
        error: The parser's error for the line without its line break, which would count as a column.
    """
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def refuse_constant(name: str) -> NoReturn:
    """Refuse what Python's parser reads besides JSON: NaN and the infinities. For `parse_constant`."""
    raise ValueError(f"{name} is not a valid JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            # As text, because 1, 1.0 and True are equal.
            if repr(found[key]) != repr(value):
                raise ValueError(f"the key {key[:60]!a} is there twice with different values")
    return found
