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
from tinkergym.spaces.numbers import DTYPES, from_lists, to_lists
from tinkergym.spaces.text import Text
from tinkergym.spaces.visitor import unsupported
from tinkergym.user_code.quoting import quoted


def to_json(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value of a space in a form that `json.dumps` writes without loss.

    Raises:
        InvalidValueError: The value is not in the space; the message says which part.
        UnsupportedSpaceError: The space, or one inside it, has no JSON form.
        MissingExtraError: There is an image, and Pillow is not installed.
    """
    return _write(space, value, "")


def from_json(space: spaces.Space[Any], document: Any) -> Any:
    """Return a value from the output of `to_json`, with the types of the space's own samples.

    Raises:
        InvalidValueError: The document is not a value of the space; the message says where.
        UnsupportedSpaceError: The space, or one inside it, has no JSON form.
        MissingExtraError: There is an image, and Pillow is not installed.
    """
    return _read(space, document, "")


# --- writing ---


def _write(space: spaces.Space[Any], value: Any, where: str) -> Any:
    if type(space) is spaces.Dict:
        keys = list(space.spaces)
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise _wrong(where, f"expected a dict with the keys {keys}, found {quoted(value)!a}")
        if not all(isinstance(key, str) for key in space.spaces):
            raise unsupported(space)
        return {key: _write(inner, value[key], f"{where}[{key!r}]") for key, inner in space.spaces.items()}
    if type(space) is spaces.Tuple:
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _wrong(where, f"expected a tuple of {len(space.spaces)}, found {quoted(value)!a}")
        return [
            _write(inner, part, f"{where}[{index}]")
            for index, (inner, part) in enumerate(zip(space.spaces, value, strict=True))
        ]
    if type(space) is spaces.Sequence and not space.stack:
        if not isinstance(value, tuple | list):
            raise _wrong(where, f"expected a tuple, found {quoted(value)!a}")
        return [_write(space.feature_space, part, f"{where}[{index}]") for index, part in enumerate(value)]
    if type(space) is spaces.OneOf:
        index, inner = _chosen(space, value, where)
        return [index, _write(inner, value[1], f"{where}[1]")]
    write = _WRITERS.get(type(space))
    if write is None:
        raise unsupported(space)
    return write(space, _inside(space, value, where))


def _write_array(space: Any, value: Any) -> Any:
    if space.dtype not in DTYPES:
        raise unsupported(space)
    return to_lists(np.asarray(value, dtype=space.dtype))


def _write_text(space: Any, value: Any) -> str:
    del space
    return str(value)


def _write_chat(space: Chat, value: Any) -> Any:
    return space.to_jsonable([value])[0]


def _write_discrete(space: Any, value: Any) -> int:
    del space
    return int(value)


def _write_image(space: Image, value: Pixels) -> str:
    return base64.b64encode(space.to_png(value)).decode()


_WRITERS: dict[type, Callable[[Any, Any], Any]] = {
    Text: _write_text,
    spaces.Text: _write_text,
    Chat: _write_chat,
    Image: _write_image,
    spaces.Discrete: _write_discrete,
    spaces.Box: _write_array,
    spaces.MultiDiscrete: _write_array,
    spaces.MultiBinary: _write_array,
}


# --- reading ---


def _read(space: spaces.Space[Any], document: Any, where: str) -> Any:
    if type(space) is spaces.Dict:
        keys = list(space.spaces)
        if not isinstance(document, dict) or document.keys() != space.spaces.keys():
            raise _wrong(where, f"expected an object with the keys {keys}, found {quoted(document)!a}")
        return {key: _read(inner, document[key], f"{where}[{key!r}]") for key, inner in space.spaces.items()}
    if type(space) is spaces.Tuple:
        if not isinstance(document, list) or len(document) != len(space.spaces):
            raise _wrong(where, f"expected an array of {len(space.spaces)}, found {quoted(document)!a}")
        return tuple(
            _read(inner, part, f"{where}[{index}]")
            for index, (inner, part) in enumerate(zip(space.spaces, document, strict=True))
        )
    if type(space) is spaces.Sequence and not space.stack:
        if not isinstance(document, list):
            raise _wrong(where, f"expected an array, found {quoted(document)!a}")
        parts = enumerate(document)
        return tuple(_read(space.feature_space, part, f"{where}[{index}]") for index, part in parts)
    if type(space) is spaces.OneOf:
        index, inner = _chosen(space, document, where)
        return np.int64(index), _read(inner, document[1], f"{where}[1]")
    read = _READERS.get(type(space))
    if read is None:
        raise unsupported(space)
    try:
        value = read(space, document)
    except (ValueError, InvalidValueError) as error:
        raise _wrong(where, error.message if isinstance(error, TinkerGymError) else str(error)) from error
    return _inside(space, value, where)


def _read_array(space: Any, document: Any) -> Any:
    if space.dtype not in DTYPES:
        raise unsupported(space)
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


_READERS: dict[type, Callable[[Any, Any], Any]] = {
    Text: _read_text,
    spaces.Text: _read_text,
    Chat: _read_chat,
    Image: _read_image,
    spaces.Discrete: _read_discrete,
    spaces.Box: _read_array,
    spaces.MultiDiscrete: _read_array,
    spaces.MultiBinary: _read_array,
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
