"""Spaces as JSON documents and back: how a space travels over a wire.

A document names its kind under `space`. A document from somebody else is as harmless as it is wrong: unknown
keys, wrong types and sizes that would fill the memory are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.errors import InvalidSpaceError, UnsupportedSpaceError
from tinkergym.quoting import quoted
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import DTYPES, from_lists, to_lists
from tinkergym.spaces.text import Text

Document = dict[str, Any]

_MOST_DEPTH = 32
_MOST_BYTES = 2**28
"""Of all arrays that the spaces of one document keep or sample."""


def space_to_json(space: spaces.Space[Any]) -> Document:
    """Return a JSON document that describes a space; `space_from_json` makes an equal one of it.

    The seed does not travel.

    Raises:
        UnsupportedSpaceError: The space, or one inside it, has no JSON form.
    """
    write = _WRITERS.get(type(space))
    if write is None:
        raise unsupported(space)
    return write(space)


def space_from_json(document: object) -> spaces.Space[Any]:
    """Return the space that a document describes.

    Raises:
        InvalidSpaceError: It describes none; the message says where.
    """
    return _Reader().read(document, "", 0)


def unsupported(space: object) -> UnsupportedSpaceError:
    """Return the error for a space without a JSON form."""
    kinds = ", ".join(sorted(kind.__name__ for kind in _WRITERS if kind is not spaces.Text))
    return UnsupportedSpaceError(
        f"{quoted(space)} ({type(space).__module__}.{type(space).__qualname__}) has no JSON form",
        hint=f"these have one: {kinds}, with string keys and native number types",
    )


# --- writing ---


def _text(space: Text) -> Document:
    return {"space": "text", "min_length": space.min_length, "max_length": space.max_length}


def _characters(space: spaces.Text) -> Document:
    return {
        "space": "characters",
        "min_length": space.min_length,
        "max_length": space.max_length,
        "characters": "".join(space.character_list),
    }


def _chat(space: Chat) -> Document:
    return {
        "space": "chat",
        "min_messages": space.min_messages,
        "max_messages": space.max_messages,
        "roles": list(space.roles),
        "max_length": space.max_length,
    }


def _image(space: Image) -> Document:
    height, width, channels = space.shape
    return {"space": "image", "height": height, "width": width, "channels": channels}


def _box(space: spaces.Box) -> Document:
    return {
        "space": "box",
        "dtype": _dtype(space),
        "shape": list(space.shape),
        "low": _bounds(space.low),
        "high": _bounds(space.high),
    }


def _discrete(space: spaces.Discrete) -> Document:
    return {"space": "discrete", "dtype": _dtype(space), "n": int(space.n), "start": int(space.start)}


def _multi_discrete(space: spaces.MultiDiscrete) -> Document:
    return {
        "space": "multi_discrete",
        "dtype": _dtype(space),
        "shape": list(space.shape),
        "nvec": to_lists(space.nvec),
        "start": to_lists(space.start),
    }


def _multi_binary(space: spaces.MultiBinary) -> Document:
    n = space.n
    return {"space": "multi_binary", "n": int(n) if np.ndim(n) == 0 else [int(side) for side in n]}  # type: ignore[arg-type, union-attr]


def _dict(space: spaces.Dict) -> Document:
    if not all(isinstance(key, str) for key in space.spaces):
        raise unsupported(space)
    return {
        "space": "dict",
        # Pairs, since the order decides how the space flattens and not every JSON library keeps it.
        "spaces": [[key, space_to_json(inner)] for key, inner in space.spaces.items()],
        # Decides how Gymnasium orders spaces that it derives from this one. Older versions always sort.
        "sort_keys": bool(getattr(space, "sort_keys", True)),
    }


def _tuple(space: spaces.Tuple) -> Document:
    return {"space": "tuple", "spaces": [space_to_json(inner) for inner in space.spaces]}


# By exact type: a subclass from elsewhere may mean something else.
_WRITERS: dict[type, Callable[[Any], Document]] = {
    Text: _text,
    spaces.Text: _characters,
    Chat: _chat,
    Image: _image,
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Dict: _dict,
    spaces.Tuple: _tuple,
}


def _dtype(space: spaces.Space[Any]) -> str:
    if space.dtype not in DTYPES:
        raise unsupported(space)
    return DTYPES[space.dtype]


def _bounds(bounds: Any) -> Any:
    uniform = bounds.size > 1 and bool((bounds == bounds.flat[0]).all())
    return to_lists(bounds.reshape(-1)[0] if uniform else bounds)


# --- reading ---


class _Reader:
    """Reads one document and remembers how much memory its spaces take."""

    def __init__(self) -> None:
        self._bytes_left = _MOST_BYTES

    def read(self, document: object, where: str, depth: int) -> spaces.Space[Any]:
        """Return the space of a document that stands at `where` in the whole."""
        fields = _Fields(document, where)
        kind = fields.take("space", str)
        read = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if read is None:
            raise fields.wrong(f"there is no space {quoted(kind)!a}; there are {', '.join(_KINDS)}")
        if depth > _MOST_DEPTH:
            raise fields.wrong(f"spaces are nested more than {_MOST_DEPTH} deep")
        try:
            space: spaces.Space[Any] = read(fields, depth)
        # What Gymnasium's and our own constructors raise on arguments that make no space.
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
            raise fields.wrong("a key of a dict stands there twice")
        inner = {key: self.read(value, f"{fields.where}[{key!r}]", depth + 1) for key, value in pairs}
        kept = {} if fields.take("sort_keys", bool) else {"sort_keys": False}
        return spaces.Dict(list(inner.items()), **kept)

    def _tuple(self, fields: _Fields, depth: int) -> spaces.Tuple:
        documents = fields.take("spaces", list)
        return spaces.Tuple(
            [self.read(value, f"{fields.where}[{i}]", depth + 1) for i, value in enumerate(documents)]
        )

    def _array(self, fields: _Fields) -> tuple[np.dtype[Any], tuple[int, ...]]:
        dtype, shape = fields.dtype(), fields.integers(fields.take("shape", list))
        self._reserve(shape, dtype, fields)
        return dtype, tuple(shape)

    def _reserve(self, shape: list[int], dtype: np.dtype[Any], fields: _Fields) -> None:
        if len(shape) > _MOST_DEPTH or min(shape, default=1) < 0:
            raise fields.wrong(f"there is no array of the shape {quoted(shape)}")
        self._bytes_left -= prod(shape) * dtype.itemsize
        if self._bytes_left < 0:
            raise fields.wrong(f"the arrays of these spaces would take more than {_MOST_BYTES} bytes")


_KINDS = [
    *("text", "characters", "chat", "image", "box", "discrete", "multi_discrete", "multi_binary"),
    *("dict", "tuple"),
]


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
        if name not in DTYPES.values():
            raise self.wrong(f"there is no dtype {quoted(name)!a}; there are {', '.join(DTYPES.values())}")
        return np.dtype(name)

    def integers(self, values: list[Any]) -> list[int]:
        """Return the values if all of them are integers."""
        if not all(type(value) is int for value in values):
            raise self.wrong(f"sides must be integers, found {quoted(values)!a}")
        return values

    def done(self) -> None:
        """Refuse keys that nobody took."""
        if self._left:
            raise self.wrong(f"{quoted(self._kind)!a} has no {quoted(min(map(str, self._left)))!a}")

    def wrong(self, what: str) -> InvalidSpaceError:
        """Return the error that says what is wrong with this document."""
        return InvalidSpaceError(f"{self.where or 'the document'}: {what}")


def _filled(bounds: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if isinstance(bounds, list):
        return from_lists(bounds, shape, dtype)
    return np.full(shape, from_lists(bounds, (), dtype), dtype)
