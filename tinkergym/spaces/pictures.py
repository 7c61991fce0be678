"""Pictures on their way through JSON: inside it as PNG files, or beside it as raw pixels."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Protocol

import numpy as np

from tinkergym.quoting import quoted
from tinkergym.spaces.image import Image, Pixels


class Pictures(Protocol):
    """How pictures are written."""

    def write(self, space: Image, pixels: Pixels) -> Any:
        """Return what stands in the JSON for a picture."""
        ...

    def read(self, space: Image, document: Any) -> Pixels:
        """Return the picture for which this stands.

        Raises:
            ValueError: It stands for none.
            InvalidValueError: It stands for one of another size.
        """
        ...


class Png:
    """Into the JSON, as PNG files."""

    def write(self, space: Image, pixels: Pixels) -> str:
        """Return the base64 text of a PNG file."""
        return base64.b64encode(space.to_png(pixels)).decode()

    def read(self, space: Image, document: Any) -> Pixels:
        """Unpack the base64 text of a PNG file."""
        try:
            data = base64.b64decode(document, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise ValueError(f"this is no base64 text: {error}") from error
        return space.from_png(data)


class Parts:
    """Beside the JSON, as raw pixels; the JSON says which part."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def write(self, space: Image, pixels: Pixels) -> int:
        """Add a part and return its place."""
        del space
        self.parts.append(np.ascontiguousarray(pixels).tobytes())
        return len(self.parts) - 1

    def read(self, space: Image, document: Any) -> Pixels:
        """Return the pixels of the part at this place."""
        if type(document) is not int or not 0 <= document < len(self.parts):
            raise ValueError(f"expected one of {len(self.parts)} parts, found {quoted(document)!a}")
        part = self.parts[document]
        size = int(np.prod(space.shape))
        if len(part) != size:
            raise ValueError(f"part {document} has {len(part)} bytes, {space} needs {size}")
        # Copied: an array over somebody else's bytes would be read-only.
        return np.frombuffer(part, np.uint8).reshape(space.shape).copy()
