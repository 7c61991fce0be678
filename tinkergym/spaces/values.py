"""Values of spaces as JSON and back, equal to the last bit.

An image becomes the base64 text of a PNG file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.errors import InvalidValueError, TinkerGymError
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image, Pixels
from tinkergym.spaces.numbers import from_lists, to_lists
from tinkergym.spaces.visitor import KINDS, SpaceVisitor, dtype_name
from tinkergym.user_code.quoting import quoted


def to_json(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value of a space in a form that `json.dumps` writes without loss.

    Raises:
        InvalidValueError: The value is not in the space; the message says which part.
        InvalidSpaceError: The space, or one inside it, has no JSON form.
        MissingExtraError: There is an image, and Pillow is not installed.
    """
    return _Writer().visit(space, value, "")


def from_json(space: spaces.Space[Any], document: Any) -> Any:
    """Return a value from the output of `to_json`, with the types of the space's own samples.

    Raises:
        InvalidValueError: The document is not a value of the space; the message says where.
        InvalidSpaceError: The space, or one inside it, has no JSON form.
        MissingExtraError: There is an image, and Pillow is not installed.
    """
    return _Reader().visit(space, document, "")


class _Writer(SpaceVisitor[Any]):
    """`visit(space, value, where)` writes the value at `where` in the whole."""

    def dict(self, space: spaces.Dict, value: Any, where: str) -> Any:
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            keys = list(space.spaces)
            raise _wrong(where, f"expected a dict with the keys {keys}, found {quoted(value)!a}")
        return {
            key: self.visit(inner, value[key], f"{where}[{key!r}]") for key, inner in space.spaces.items()
        }

    def tuple(self, space: spaces.Tuple[Any], value: Any, where: str) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _wrong(where, f"expected a tuple of {len(space.spaces)}, found {quoted(value)!a}")
        pairs = enumerate(zip(space.spaces, value, strict=True))
        return [self.visit(inner, part, f"{where}[{index}]") for index, (inner, part) in pairs]

    def sequence(self, space: spaces.Sequence, value: Any, where: str) -> Any:
        if not isinstance(value, tuple | list):
            raise _wrong(where, f"expected a tuple, found {quoted(value)!a}")
        return [self.visit(space.feature_space, part, f"{where}[{i}]") for i, part in enumerate(value)]

    def one_of(self, space: spaces.OneOf[Any], value: Any, where: str) -> Any:
        index, inner = _chosen(space, value, where)
        return [index, self.visit(inner, value[1], f"{where}[1]")]

    def box(self, space: Any, value: Any, where: str) -> Any:
        value = _inside(space, value, where)
        dtype_name(space)
        return to_lists(np.asarray(value, dtype=space.dtype))

    multi_discrete = multi_binary = box

    def text(self, space: Any, value: Any, where: str) -> str:
        return str(_inside(space, value, where))

    characters = text

    def chat(self, space: Chat, value: Any, where: str) -> Any:
        return space.to_jsonable([_inside(space, value, where)])[0]

    def discrete(self, space: Any, value: Any, where: str) -> int:
        return int(_inside(space, value, where))

    def image(self, space: Image, value: Any, where: str) -> str:
        return base64.b64encode(space.to_png(_inside(space, value, where))).decode()


class _Reader(SpaceVisitor[Any]):
    """`visit(space, document, where)` reads the value at `where` in the whole."""

    def dict(self, space: spaces.Dict, document: Any, where: str) -> Any:
        if not isinstance(document, dict) or document.keys() != space.spaces.keys():
            keys = list(space.spaces)
            raise _wrong(where, f"expected an object with the keys {keys}, found {quoted(document)!a}")
        inner = space.spaces.items()
        return {key: self.visit(part, document[key], f"{where}[{key!r}]") for key, part in inner}

    def tuple(self, space: spaces.Tuple[Any], document: Any, where: str) -> Any:
        if not isinstance(document, list) or len(document) != len(space.spaces):
            raise _wrong(where, f"expected an array of {len(space.spaces)}, found {quoted(document)!a}")
        pairs = enumerate(zip(space.spaces, document, strict=True))
        return tuple(self.visit(inner, part, f"{where}[{index}]") for index, (inner, part) in pairs)

    def sequence(self, space: spaces.Sequence, document: Any, where: str) -> Any:
        if not isinstance(document, list):
            raise _wrong(where, f"expected an array, found {quoted(document)!a}")
        parts = enumerate(document)
        return tuple(self.visit(space.feature_space, part, f"{where}[{index}]") for index, part in parts)

    def one_of(self, space: spaces.OneOf[Any], document: Any, where: str) -> Any:
        index, inner = _chosen(space, document, where)
        return np.int64(index), self.visit(inner, document[1], f"{where}[1]")

    def _leaf(self, space: Any, document: Any, where: str) -> Any:
        try:
            value = _LEAVES[KINDS[type(space)]](space, document)
        except (ValueError, InvalidValueError) as error:
            raise _wrong(where, error.message if isinstance(error, TinkerGymError) else str(error)) from error
        return _inside(space, value, where)

    box = multi_discrete = multi_binary = text = characters = chat = discrete = image = _leaf


def _read_array(space: Any, document: Any) -> Any:
    dtype_name(space)
    return from_lists(document, space.shape, space.dtype)


def _read_text(space: Any, document: Any) -> str:
    del space
    if type(document) is not str:
        raise ValueError(f"expected a string, found {quoted(document)!a}")
    return document


def _read_chat(space: Chat, document: Any) -> Any:
    if fault := space.fault(document):
        raise ValueError(fault)
    return space.from_jsonable([document])[0]


def _read_discrete(space: Any, document: Any) -> Any:
    return from_lists(document, (), space.dtype)[()]


def _read_image(space: Image, document: Any) -> Pixels:
    try:
        data = base64.b64decode(document, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ValueError(f"this is not base64 text: {error}") from error
    return space.from_png(data)


_LEAVES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("box", "multi_discrete", "multi_binary"), _read_array),
    **dict.fromkeys(("text", "characters"), _read_text),
    "chat": _read_chat,
    "discrete": _read_discrete,
    "image": _read_image,
}


def _chosen(space: spaces.OneOf[Any], value: Any, where: str) -> tuple[int, spaces.Space[Any]]:
    """Return which of the spaces a value of `OneOf` belongs to: its index, and the space itself."""
    count = len(space.spaces)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise _wrong(where, f"expected the index of a space and a value of it, found {quoted(value)!a}")
    if type(value[0]) not in (int, np.int64) or not 0 <= value[0] < count:
        raise _wrong(
            where, f"expected the index of a space from 0 to {count - 1}, found {quoted(value[0])!a}"
        )
    return int(value[0]), space.spaces[value[0]]


def _inside(space: spaces.Space[Any], value: Any, where: str) -> Any:
    if type(space) is spaces.Box and not isinstance(value, np.ndarray):
        # Gymnasium also accepts lists and numbers for boxes, with a warning.
        try:
            value = np.asarray(value, dtype=space.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise _wrong(where, f"{quoted(value)!a} is not in {space}") from error
    if isinstance(space, Chat) and (fault := space.fault(value)):
        raise _wrong(where, fault)
    if value not in space:
        raise _wrong(where, f"{quoted(value)!a} is not in {space}")
    return value


def _wrong(where: str, what: str) -> InvalidValueError:
    return InvalidValueError(f"{where or 'the value'}: {what}")
