"""Observations, actions and infos as JSON plus raw bytes, with their exact types and values.

Unlike `tinkergym.spaces.to_json` it does not use spaces: an info has none, and the environment handles
actions outside its space. Plain JSON values stay unchanged. Other values are written as an object with one
key that starts with `$`; the bytes of arrays follow the JSON and are referenced by number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_KINDS = frozenset("biuf")
"""Kinds of numbers with the same meaning on every machine: bool, signed, unsigned, float."""
_MOST_ITEM_BYTES = 8
"""Longer floats differ between machines."""

Blob = bytes | memoryview
Blobs = list[Blob | None]
"""The bytes received with a message; None for those already used by a value."""


def pack(value: Any, blobs: list[Blob]) -> Any:
    """Return the JSON form of a value; bytes are appended to `blobs`.

    Raises:
        TypeError: Something in it cannot be sent; the message says what.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _pack_numbers(value, blobs)
    if isinstance(value, str | int | float):
        # For a subclass, such as an enumeration, only the plain value is sent.
        plain = next(plain for plain in (str, int, float) if isinstance(value, plain))(value)
        finite = not isinstance(plain, float) or math.isfinite(plain)
        return plain if finite else {"$float": repr(plain)}
    return _pack_container(value, blobs)


def _pack_container(value: Any, blobs: list[Blob]) -> Any:
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: pack(item, blobs) for key, item in value.items()}
        return {"$dict": [[pack(key, blobs), pack(item, blobs)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [pack(item, blobs) for item in value]}
    if isinstance(value, list):
        return [pack(item, blobs) for item in value]
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return {"$bytes": len(blobs) - 1}
    kind = type(value)
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent; supported are numbers, texts, bytes, "
        f"lists, tuples, dicts and numpy arrays of them"
    )


def unpack(value: Any, blobs: Blobs) -> Any:
    """Inverse of `pack`; each of `blobs` is used by one value.

    Raises:
        ValueError: It is not an output of `pack`.
    """
    if isinstance(value, list):
        return [unpack(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        name, inner = next(iter(value.items()))
        if name.startswith("$"):
            try:
                return _UNPACK[name](inner, blobs)
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{name} with {str(inner)[:100]} is invalid here") from error
    return {key: unpack(item, blobs) for key, item in value.items()}


def _pack_numbers(value: np.ndarray[Any, Any] | np.generic, blobs: list[Blob]) -> Any:
    dtype = value.dtype
    if dtype.kind not in _KINDS or dtype.itemsize > _MOST_ITEM_BYTES:
        if isinstance(value, np.str_):
            return pack(str(value), blobs)
        raise TypeError(
            f"a numpy {dtype.name} cannot be sent; supported are bool, integers and floats to 64 bits"
        )
    if isinstance(value, np.generic):
        return {"$number": [dtype.name, pack(value.item(), blobs)]}
    # Little-endian on the wire, on every machine.
    portable = np.ascontiguousarray(value, dtype=dtype.newbyteorder("<"))
    blobs.append(portable.tobytes())
    return {"$array": [dtype.name, list(value.shape), len(blobs) - 1]}


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS or dtype.itemsize > _MOST_ITEM_BYTES:
        raise ValueError(f"{name} is not a number type")
    return dtype


def _unpack_array(inner: Any, blobs: Blobs) -> Any:
    name, shape, number = inner
    dtype = _dtype(name)
    flat = np.frombuffer(_taken(blobs, number), dtype=dtype.newbyteorder("<"))
    # A copy: an environment or a user may write to its array.
    return flat.reshape([_index(length) for length in shape]).astype(dtype)


def _taken(blobs: Blobs, number: Any) -> Blob:
    blob = blobs[_index(number)]
    if blob is None:
        # If a small message named the same bytes a thousand times, it would take a thousand times their
        # memory.
        raise ValueError(f"blob {number} is used twice")
    blobs[number] = None
    return blob


def _index(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is not a valid index")
    return number


_UNPACK: dict[str, Any] = {
    "$float": lambda inner, _blobs: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[inner],
    "$dict": lambda inner, blobs: {unpack(key, blobs): unpack(item, blobs) for key, item in inner},
    "$tuple": lambda inner, blobs: tuple(unpack(item, blobs) for item in inner),
    "$bytes": lambda inner, blobs: bytes(_taken(blobs, inner)),
    "$number": lambda inner, blobs: _dtype(inner[0]).type(unpack(inner[1], blobs)),
    "$array": _unpack_array,
}
