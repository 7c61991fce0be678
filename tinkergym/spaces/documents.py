"""Spaces as JSON documents. `reading` is the inverse.

A document names its kind under `space`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.errors import UnsupportedSpaceError
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import DTYPES, to_lists
from tinkergym.spaces.text import Text
from tinkergym.user_code.quoting import quoted

Document = dict[str, Any]


def space_to_json(space: spaces.Space[Any]) -> Document:
    """Return a JSON document that describes a space; `space_from_json` is the inverse.

    The seed is not included.

    Raises:
        UnsupportedSpaceError: The space, or one inside it, has no JSON form.
    """
    write = _WRITERS.get(type(space))
    if write is None:
        raise unsupported(space)
    return write(space)


def unsupported(space: object) -> UnsupportedSpaceError:
    """Return the error for a space without a JSON form."""
    if type(space) is spaces.Sequence:  # A stacked sequence; others have a JSON form.
        return UnsupportedSpaceError(
            f"{quoted(space)} has no JSON form: its values do not contain their length",
            hint="use stack=False, whose values are tuples",
        )
    kinds = ", ".join(sorted(kind.__name__ for kind in _WRITERS if kind is not spaces.Text))
    return UnsupportedSpaceError(
        f"{quoted(space)} ({type(space).__module__}.{type(space).__qualname__}) has no JSON form",
        hint=f"supported: {kinds}, with string keys and native number types",
    )


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
        # Pairs, because the order determines how the space flattens, and not every JSON library preserves it.
        "spaces": [[key, space_to_json(inner)] for key, inner in space.spaces.items()],
        # Determines how Gymnasium orders spaces derived from this one. Older versions always sort.
        "sort_keys": bool(getattr(space, "sort_keys", True)),
    }


def _tuple(space: spaces.Tuple[Any]) -> Document:
    return {"space": "tuple", "spaces": [space_to_json(inner) for inner in space.spaces]}


def _sequence(space: spaces.Sequence) -> Document:
    if space.stack:
        raise unsupported(space)
    return {"space": "sequence", "of": space_to_json(space.feature_space)}


def _one_of(space: spaces.OneOf[Any]) -> Document:
    return {"space": "one_of", "spaces": [space_to_json(inner) for inner in space.spaces]}


# By exact type: a subclass from elsewhere may have another meaning.
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
    spaces.Sequence: _sequence,
    spaces.OneOf: _one_of,
}


def _dtype(space: spaces.Space[Any]) -> str:
    if space.dtype not in DTYPES:
        raise unsupported(space)
    return DTYPES[space.dtype]


def _bounds(bounds: Any) -> Any:
    uniform = bounds.size > 1 and bool((bounds == bounds.flat[0]).all())
    return to_lists(bounds.reshape(-1)[0] if uniform else bounds)
