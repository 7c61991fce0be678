"""Spaces as JSON documents. `reading` is the inverse.

A document names its kind under `space`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import to_lists
from tinkergym.spaces.text import Text
from tinkergym.spaces.visitor import SpaceVisitor, dtype_name

Document = dict[str, Any]


def space_to_json(space: spaces.Space[Any]) -> Document:
    """Return a JSON document that describes a space; `space_from_json` is the inverse.

    The seed is not included.

    Raises:
        InvalidSpaceError: The space, or one inside it, has no JSON form.
    """
    return _Documents().visit(space)


class _Documents(SpaceVisitor[Document]):
    def text(self, space: Text) -> Document:
        return {"space": "text", "min_length": space.min_length, "max_length": space.max_length}

    def characters(self, space: spaces.Text) -> Document:
        return {
            "space": "characters",
            "min_length": space.min_length,
            "max_length": space.max_length,
            "characters": "".join(space.character_list),
        }

    def chat(self, space: Chat) -> Document:
        return {
            "space": "chat",
            "min_messages": space.min_messages,
            "max_messages": space.max_messages,
            "roles": list(space.roles),
            "max_length": space.max_length,
        }

    def image(self, space: Image) -> Document:
        height, width, channels = space.shape
        return {"space": "image", "height": height, "width": width, "channels": channels}

    def box(self, space: spaces.Box) -> Document:
        return {
            "space": "box",
            "dtype": dtype_name(space),
            "shape": list(space.shape),
            "low": _bounds(space.low),
            "high": _bounds(space.high),
        }

    def discrete(self, space: spaces.Discrete) -> Document:
        return {"space": "discrete", "dtype": dtype_name(space), "n": int(space.n), "start": int(space.start)}

    def multi_discrete(self, space: spaces.MultiDiscrete) -> Document:
        return {
            "space": "multi_discrete",
            "dtype": dtype_name(space),
            "shape": list(space.shape),
            "nvec": to_lists(space.nvec),
            "start": to_lists(space.start),
        }

    def multi_binary(self, space: spaces.MultiBinary) -> Document:
        n = space.n
        return {"space": "multi_binary", "n": int(n) if np.ndim(n) == 0 else [int(side) for side in n]}  # type: ignore[arg-type, union-attr]

    def dict(self, space: spaces.Dict) -> Document:
        return {
            "space": "dict",
            # Pairs: the order determines how the space flattens, and not every JSON library preserves it.
            "spaces": [[key, self.visit(inner)] for key, inner in space.spaces.items()],
            # Determines how Gymnasium orders spaces derived from this one. Older versions always sort.
            "sort_keys": bool(getattr(space, "sort_keys", True)),
        }

    def tuple(self, space: spaces.Tuple[Any]) -> Document:
        return {"space": "tuple", "spaces": [self.visit(inner) for inner in space.spaces]}

    def sequence(self, space: spaces.Sequence) -> Document:
        return {"space": "sequence", "of": self.visit(space.feature_space)}

    def one_of(self, space: spaces.OneOf[Any]) -> Document:
        return {"space": "one_of", "spaces": [self.visit(inner) for inner in space.spaces]}


def _bounds(bounds: Any) -> Any:
    uniform = bounds.size > 1 and bool((bounds == bounds.flat[0]).all())
    return to_lists(bounds.reshape(-1)[0] if uniform else bounds)
