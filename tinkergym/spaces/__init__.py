"""Gymnasium spaces for language, and any space and its values as JSON."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinkergym.spaces.text import Text

if TYPE_CHECKING:
    from tinkergym.spaces.chat import Chat
    from tinkergym.spaces.documents import space_to_json
    from tinkergym.spaces.image import Image
    from tinkergym.spaces.reading import space_from_json
    from tinkergym.spaces.schema import json_schema
    from tinkergym.spaces.values import from_json, to_json

__all__ = [
    "Chat",
    "Image",
    "Text",
    "from_json",
    "json_schema",
    "space_from_json",
    "space_to_json",
    "to_json",
]

_HOMES = {
    "Chat": "chat",
    "Image": "image",
    "from_json": "values",
    "json_schema": "schema",
    "space_from_json": "reading",
    "space_to_json": "documents",
    "to_json": "values",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinkergym.spaces' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tinkergym.spaces.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
