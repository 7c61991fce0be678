"""Values of Gymnasium's spaces as text, and text parsed back into values.

Independent of environments, episodes and names of actions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tinkergym.basics.user_json import refuse_constant
from tinkergym.errors import InvalidEnvironmentError

MOST_NUMBERS = 1000
"""A space with more numbers is an image; as text it would fill a model's context."""

_LONGEST_ANSWER = 20_000
"""Characters; longer text cannot be a value of a space with at most `MOST_NUMBERS` numbers."""

_ARRAYS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)


def refuse_unspeakable(space: gym.Space[Any], role: str) -> None:
    """Raise unless values of the space can be written as text.

    Args:
        space: Any space.
        role: "observation" or "action", for the message.

    Raises:
        InvalidEnvironmentError: The space, or one inside it, is not supported or too large.
    """
    if isinstance(space, spaces.Tuple | spaces.Dict):
        for part in space.spaces if isinstance(space, spaces.Tuple) else space.spaces.values():
            refuse_unspeakable(part, role)
    elif isinstance(space, _ARRAYS):
        numbers = math.prod(space.shape)
        if numbers > MOST_NUMBERS:
            raise InvalidEnvironmentError(
                f"an {role} with {numbers} numbers cannot be written as text",
                hint=f"Verbalize supports up to {MOST_NUMBERS}; show images with tinkergym.spaces.Image",
                field="env",
            )
    elif not isinstance(space, spaces.Discrete | spaces.Text):
        raise InvalidEnvironmentError(
            f"Verbalize does not support an {role} of type {type(space).__name__}",
            hint="it supports Discrete, Box, MultiDiscrete, MultiBinary, Text, and Tuple and Dict of these; "
            "write your own wrapper for others",
            field="env",
        )


def say(space: gym.Space[Any], value: Any, decimals: int) -> str:
    """Return a value as text: numbers with spaces between, one line per row or part.

    Args:
        space: The space of the value.
        value: The value.
        decimals: Digits after the point of floating-point numbers.
    """
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{key}: {_in_one_line(part, value[key], decimals)}" for key, part in space.items())
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, value, strict=True)
        return "\n".join(_in_one_line(part, element, decimals) for part, element in parts)
    if isinstance(space, _ARRAYS):
        array = np.asarray(value)
        if array.ndim <= 1:
            return " ".join(_number(element, decimals) for element in array.reshape(-1))
        if array.ndim == 2:
            return "\n".join(" ".join(_number(element, decimals) for element in row) for row in array)
    return say_as_json(space, value, decimals)


def read(space: gym.Space[Any], text: str) -> Any | None:
    """Return the value that a text represents; None if it is not one of this space.

    A number, numbers with spaces or commas between, or JSON if a space has parts or rows. Never raises.
    """
    if len(text) > _LONGEST_ANSWER:
        return None
    if isinstance(space, spaces.Text):
        return text if space.contains(text) else None
    plain: Any
    if isinstance(space, spaces.Discrete):
        plain = _plain_number(text.strip())
    elif isinstance(space, _ARRAYS) and len(space.shape) <= 1:
        numbers = [_plain_number(word) for word in re.split(r"[\s,]+", text.strip(" \t\r\n[]()"))]
        plain = numbers if space.shape else numbers[0] if len(numbers) == 1 else None
    else:
        try:
            plain = json.loads(text, parse_constant=refuse_constant)
        # A thousand nested brackets cause a RecursionError.
        except (ValueError, RecursionError):
            return None
    return _value(space, plain)


def how_to_say(space: gym.Space[Any], decimals: int) -> str:
    """Return the text format of a value of the space, as the end of "Answer with ..."."""
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        if space.n <= 10:
            return "one of: " + ", ".join(map(str, range(first, last + 1)))
        return f"a whole number from {first} to {last}"
    if isinstance(space, _ARRAYS) and len(space.shape) <= 1:
        count = math.prod(space.shape)
        what = "number" if isinstance(space, spaces.Box) else "whole number"
        counted = f"{count} {what}s with spaces between" if count != 1 else f"a {what}"
        return f"{counted}, {_bounds(space, decimals)}"
    if isinstance(space, spaces.Text):
        return "text"
    return f"JSON: {_schema(space, decimals)}"


def _in_one_line(space: gym.Space[Any], value: Any, decimals: int) -> str:
    words = say(space, value, decimals)
    composite = isinstance(space, spaces.Tuple | spaces.Dict)
    return say_as_json(space, value, decimals) if composite or "\n" in words else words


def say_as_json(space: gym.Space[Any], value: Any, decimals: int) -> str:
    """Return a value in one line, as JSON except for numbers that JSON does not support, such as `inf`."""
    if isinstance(space, spaces.Dict):
        parts = (f"{json.dumps(k)}: {say_as_json(part, value[k], decimals)}" for k, part in space.items())
        return "{" + ", ".join(parts) + "}"
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, value, strict=True)
        return "[" + ", ".join(say_as_json(part, element, decimals) for part, element in pairs) + "]"
    if isinstance(space, _ARRAYS):
        return _nested(np.asarray(value), decimals)
    return str(value) if isinstance(space, spaces.Text) else _number(value, decimals)


def _nested(array: Any, decimals: int) -> str:
    if np.ndim(array) == 0:
        return _number(array, decimals)
    return "[" + ", ".join(_nested(row, decimals) for row in array) + "]"


def _number(value: Any, decimals: int) -> str:
    if np.issubdtype(np.asarray(value).dtype, np.floating):
        words = f"{float(value):.{decimals}f}"
        # -0.000 would look like information.
        return words.removeprefix("-") if not words.strip("-0.") else words
    return str(int(value))


def _plain_number(word: str) -> int | float | None:
    if not _NUMBER.fullmatch(word):
        return None
    try:
        return int(word)
    except ValueError:
        return float(word)


def _value(space: gym.Space[Any], plain: Any) -> Any | None:
    """Return the space's value for a JSON value; None if they do not match."""
    if isinstance(space, spaces.Dict):
        keys = list(space.spaces)
        if not isinstance(plain, dict) or set(plain) != set(keys):
            return None
        parts = _values(space.spaces.values(), [plain[key] for key in keys])
        return None if parts is None else dict(zip(keys, parts, strict=True))
    if isinstance(space, spaces.Tuple):
        fits = isinstance(plain, list) and len(plain) == len(space.spaces)
        return _values(space.spaces, plain) if fits else None
    if isinstance(space, spaces.Discrete):
        fits = type(plain) is int and space.start <= plain < space.start + space.n
        return space.dtype.type(plain) if fits else None
    if isinstance(space, spaces.Text):
        return plain if space.contains(plain) else None
    return _array(space, plain)


def _values(parts: Iterable[gym.Space[Any]], plain: list[Any]) -> tuple[Any, ...] | None:
    values = tuple(_value(part, element) for part, element in zip(parts, plain, strict=True))
    return None if any(value is None for value in values) else values


def _array(space: gym.Space[Any], plain: Any) -> Any | None:
    if not _only_numbers(plain):
        return None
    try:
        exact = np.asarray(plain, dtype=np.float64)
    except (ValueError, OverflowError):  # Rows of different length, or a number with 400 digits.
        return None
    if exact.shape != space.shape or not np.isfinite(exact).all():
        return None
    whole = np.issubdtype(space.dtype, np.integer)
    # Compared before the cast, which would wrap around.
    if whole and not ((exact == np.floor(exact)) & (np.abs(exact) < 2**53)).all():
        return None
    with np.errstate(over="ignore"):
        value = exact.astype(space.dtype)
    if whole and not (value == exact).all():
        return None
    return value if space.contains(value) else None


def _only_numbers(plain: Any) -> bool:
    if isinstance(plain, list):
        return all(_only_numbers(element) for element in plain)
    return type(plain) in (int, float)


def _bounds(space: gym.Space[Any], decimals: int) -> str:
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start.reshape(-1), (space.start + space.nvec - 1).reshape(-1)
    else:
        return "each 0 or 1" if math.prod(space.shape or (1,)) != 1 else "0 or 1"
    ranges = [
        f"from {_number(a, decimals)} to {_number(b, decimals)}" for a, b in zip(low, high, strict=True)
    ]
    if len(set(ranges)) == 1:
        return ranges[0] if len(ranges) == 1 else f"each {ranges[0]}"
    return "; ".join(f"the {position}. {range_}" for position, range_ in enumerate(ranges, 1))


def _schema(space: gym.Space[Any], decimals: int) -> str:
    if isinstance(space, spaces.Dict):
        parts = (f"{json.dumps(key)}: {_schema(part, decimals)}" for key, part in space.items())
        return "{" + ", ".join(parts) + "}"
    if isinstance(space, spaces.Tuple):
        return "[" + ", ".join(_schema(part, decimals) for part in space.spaces) + "]"
    if isinstance(space, _ARRAYS) and space.shape:
        shape = " x ".join(map(str, space.shape))
        return f"[{shape} numbers, {_bounds(space, decimals)}]"
    return f"<{how_to_say(space, decimals)}>"
