"""Gymnasium spaces for language, and any space and its values as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names
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

__getattr__ = late_names(
    __name__,
    {
        "chat": "Chat",
        "documents": "space_to_json",
        "image": "Image",
        "reading": "space_from_json",
        "schema": "json_schema",
        "values": "from_json to_json",
    },
)
