"""Arrays of numbers as JSON and back, exact to the last bit.

JSON has no infinities, so they are written as the strings "Infinity" and "-Infinity".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
DTYPES = {np.dtype(name): name for name in _NAMES}
"""Element types with a JSON form. Others depend on the machine, or are not numbers."""

_INFINITIES = {"Infinity": float("inf"), "-Infinity": float("-inf")}


def to_lists(array: NDArray[Any]) -> Any:
    """Return an array as nested lists; a 0-dimensional one as a number."""
    lists = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _spelled(lists)
    return lists


def from_lists(lists: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array from the output of `to_lists`.

    Raises:
        ValueError: The nesting does not match the shape, or an element does not match the type: 1.5 among
            integers, true among numbers, 300 among bytes.
    """
    elements = np.array(lists, dtype=object)
    size = int(np.prod(shape, dtype=object))
    if elements.shape != shape and not (size == 0 == elements.size):
        raise ValueError(f"expected the shape {shape}, found {elements.shape}")
    allowed = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float, str)}[dtype.kind]
    flat = elements.ravel().tolist()
    for element in flat:
        if type(element) not in allowed or (type(element) is str and element not in _INFINITIES):
            raise ValueError(f"expected {dtype.name}, found {str(element)[:50]!a}")
    if dtype.kind == "f":
        flat = [_INFINITIES[element] if type(element) is str else element for element in flat]
    try:
        return np.array(flat, dtype=dtype).reshape(shape)
    except OverflowError as error:
        raise ValueError(f"a number is too large for {dtype.name}: {error}") from error


def _spelled(lists: Any) -> Any:
    if isinstance(lists, list):
        return [_spelled(element) for element in lists]
    if lists == float("inf"):
        return "Infinity"
    return "-Infinity" if lists == float("-inf") else lists
