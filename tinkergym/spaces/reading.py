"""JSON documents as spaces: the inverse of `documents`.

Untrusted documents are safe to read: unknown keys, wrong types and sizes that would fill the memory are
refused.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.errors import InvalidSpaceError
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import DTYPES, from_lists
from tinkergym.spaces.text import Text
from tinkergym.spaces.visitor import KINDS
from tinkergym.user_code.quoting import quoted

_MOST_DEPTH = 32
_MOST_BYTES = 2**26
"""The most bytes of all arrays that the spaces of one document store or sample."""


def space_from_json(document: object) -> spaces.Space[Any]:
    """Return the space that a document describes.

    Raises:
        InvalidSpaceError: It does not describe a space; the message says where.
    """
    return _Reader().read(document, "", 0)


class _Reader:
    """Reads one document and tracks how much memory its spaces take."""

    def __init__(self) -> None:
        self._bytes_left = _MOST_BYTES

    def read(self, document: object, where: str, depth: int) -> spaces.Space[Any]:
        """Return the space of the document at `where` in the whole."""
        fields = _Fields(document, where)
        kind = fields.take("space", str)
        read = getattr(self, f"_{kind}", None) if kind in KINDS.values() else None
        if read is None:
            raise fields.wrong(f"there is no space {quoted(kind)!a}; there are {', '.join(KINDS.values())}")
        if depth > _MOST_DEPTH:
            raise fields.wrong(f"spaces are nested more than {_MOST_DEPTH} deep")
        try:
            space: spaces.Space[Any] = read(fields, depth)
        # Raised by Gymnasium's and our own constructors for invalid arguments.
        except (ValueError, TypeError, AssertionError, OverflowError) as error:
            raise fields.wrong(str(error)) from error
        fields.done()
        return space

    def _text(self, fields: _Fields, _: int) -> Text:
        return Text(fields.take("max_length", int), min_length=fields.take("min_length", int))

    def _characters(self, fields: _Fields, _: int) -> spaces.Text:
        return spaces.Text(
            fields.take("max_length", int),
            min_length=fields.take("min_length", int),
            charset=fields.take("characters", str),
        )

    def _chat(self, fields: _Fields, _: int) -> Chat:
        return Chat(
            fields.take("max_messages", int),
            min_messages=fields.take("min_messages", int),
            roles=fields.take("roles", list),
            max_length=fields.take("max_length", int),
        )

    def _image(self, fields: _Fields, _: int) -> Image:
        sides = [fields.take(name, int) for name in ("height", "width", "channels")]
        self._reserve(sides, np.dtype(np.uint8), fields)
        return Image(*sides)

    def _box(self, fields: _Fields, _: int) -> spaces.Box:
        dtype, shape = self._array(fields)
        low, high = (_filled(fields.take(name), shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)

    def _discrete(self, fields: _Fields, _: int) -> spaces.Discrete:
        dtype = fields.dtype()
        return spaces.Discrete(fields.take("n", int), start=fields.take("start", int), dtype=dtype.type)

    def _multi_discrete(self, fields: _Fields, _: int) -> spaces.MultiDiscrete:
        dtype, shape = self._array(fields)
        nvec, start = (from_lists(fields.take(name), shape, dtype) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)

    def _multi_binary(self, fields: _Fields, _: int) -> spaces.MultiBinary:
        n = fields.take("n")
        sides = fields.integers(n if isinstance(n, list) else [n])
        self._reserve(sides, np.dtype(np.int8), fields)
        return spaces.MultiBinary(sides if isinstance(n, list) else sides[0])

    def _dict(self, fields: _Fields, depth: int) -> spaces.Dict:
        pairs = fields.take("spaces", list)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
            raise fields.wrong("the spaces of a dict must be pairs of a string and a space")
        if len({key for key, _ in pairs}) < len(pairs):
            raise fields.wrong("a key of a dict occurs twice")
        inner = {key: self.read(value, f"{fields.where}[{key!r}]", depth + 1) for key, value in pairs}
        kept: dict[str, Any] = {} if fields.take("sort_keys", bool) else {"sort_keys": False}
        return spaces.Dict(list(inner.items()), **kept)

    def _tuple(self, fields: _Fields, depth: int) -> spaces.Tuple[Any]:
        return spaces.Tuple(self._several(fields, depth))

    def _one_of(self, fields: _Fields, depth: int) -> spaces.OneOf[Any]:
        return spaces.OneOf(self._several(fields, depth))

    def _sequence(self, fields: _Fields, depth: int) -> spaces.Sequence:
        return spaces.Sequence(self.read(fields.take("of"), f"{fields.where}[*]", depth + 1))

    def _several(self, fields: _Fields, depth: int) -> list[spaces.Space[Any]]:
        documents = fields.take("spaces", list)
        return [self.read(value, f"{fields.where}[{i}]", depth + 1) for i, value in enumerate(documents)]

    def _array(self, fields: _Fields) -> tuple[np.dtype[Any], tuple[int, ...]]:
        dtype, shape = fields.dtype(), fields.integers(fields.take("shape", list))
        self._reserve(shape, dtype, fields)
        return dtype, tuple(shape)

    def _reserve(self, shape: list[int], dtype: np.dtype[Any], fields: _Fields) -> None:
        if len(shape) > _MOST_DEPTH or min(shape, default=1) < 0:
            raise fields.wrong(f"an array cannot have the shape {quoted(shape)}")
        self._bytes_left -= prod(shape) * dtype.itemsize
        if self._bytes_left < 0:
            raise fields.wrong(f"the arrays of these spaces would take more than {_MOST_BYTES} bytes")


class _Fields:
    """The keys of one document, each taken once."""

    def __init__(self, document: object, where: str) -> None:
        self.where = where
        if not isinstance(document, dict):
            raise self.wrong(f"a space must be an object with a 'space', found {quoted(document)!a}")
        self._left = dict(document)
        self._kind = self._left.get("space")

    def take(self, name: str, kind: type | None = None) -> Any:
        """Remove and return a value of exactly this type."""
        if name not in self._left:
            raise self.wrong(f"{quoted(self._kind)!a} needs {name!r}")
        value = self._left.pop(name)
        if kind is not None and type(value) is not kind:
            raise self.wrong(f"{name!r} must be {kind.__name__}, found {quoted(value)!a}")
        return value

    def dtype(self) -> np.dtype[Any]:
        """Take the element type."""
        name = self.take("dtype", str)
        for dtype, known in DTYPES.items():
            if name == known:
                return dtype
        raise self.wrong(f"there is no dtype {quoted(name)!a}; there are {', '.join(DTYPES.values())}")

    def integers(self, values: list[Any]) -> list[int]:
        """Return the values if all of them are integers."""
        if not all(type(value) is int for value in values):
            raise self.wrong(f"sides must be integers, found {quoted(values)!a}")
        return values

    def done(self) -> None:
        """Refuse keys that were not taken."""
        if self._left:
            raise self.wrong(f"{quoted(self._kind)!a} has no {quoted(min(map(str, self._left)))!a}")

    def wrong(self, what: str) -> InvalidSpaceError:
        """Return an error that says what is wrong with this document."""
        return InvalidSpaceError(f"{self.where or 'the document'}: {what}")


def _filled(bounds: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if isinstance(bounds, list):
        return from_lists(bounds, shape, dtype)
    return np.full(shape, from_lists(bounds, (), dtype), dtype)
