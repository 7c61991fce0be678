"""Images in a dataset row: in the messages, by path, as data URIs, or in a column with marks in the text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinkergym.datasets.conversations import RowFaultError
from tinkergym.images.stored_images import MOST_BYTES

MARK = "<image>"
"""Shows in a text where an image of the column `images` belongs."""

_KEYS = ("messages", "prompt", "completion", "chosen", "rejected")
"""Columns with messages, in the order of the conversation."""


def with_images(row: Any, folder: Path) -> Any:
    """Return a row with the image files in place of paths, data URIs and marks.

    Args:
        row: A row in our layout.
        folder: The folder for relative paths: the data file's.

    Raises:
        RowFaultError: A file cannot be read, or the number of images is not that of the marks.
    """
    if not isinstance(row, Mapping):
        return row
    given = _column(row)
    images = None if given is None else [_image(one, folder, f"images[{n}]") for n, one in enumerate(given)]
    rest = _Images(images or ())
    marked = 0
    found = {key: value for key, value in row.items() if key not in ("images", "image")}
    for key in _KEYS:
        value = found.get(key)
        if images and key == "prompt" and isinstance(value, str) and MARK in value:
            value = [{"role": "user", "content": value}]
        if isinstance(value, list | tuple):
            if images is not None:
                # The two answers of a pair show the images of one prompt.
                marked += sum(map(_marks, value))
            found[key] = [_message(one, folder, rest, column=images is not None) for one in value]
    if images is not None and marked != len(images):
        raise RowFaultError(f"images: {len(images)}, but the messages have {marked} marks for images")
    return found


class _Images:
    """The images of a row, taken in order, or by the number in a mark."""

    def __init__(self, images: Sequence[Any]) -> None:
        self._images, self._taken = images, 0

    def take(self, index: Any = None) -> Any:
        place = index if isinstance(index, int) else self._taken
        self._taken += 1
        return self._images[place] if 0 <= place < len(self._images) else None


def _column(row: Mapping[str, Any]) -> list[Any] | None:
    if "images" not in row and "image" not in row:
        return None
    if "images" in row and "image" in row:
        raise RowFaultError("image: cannot be combined with images")
    given = row["images"] if "images" in row else [row["image"]]
    if not isinstance(given, list | tuple):
        raise RowFaultError(f"images: must be a list, not {type(given).__name__}")
    return list(given)


def _is_mark(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image" and part.keys() <= {"type", "index"}


def _marks(message: Any) -> int:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return content.count(MARK)
    if not isinstance(content, list | tuple):
        return 0
    return sum(map(_is_mark, content)) or sum(_text_of(part).count(MARK) for part in content)


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else ""
    return text if isinstance(text, str) else ""


def _message(message: Any, folder: Path, rest: _Images, *, column: bool) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if column and isinstance(content, str) and MARK in content:
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list | tuple):
        return message
    in_parts = any(map(_is_mark, content))
    parts: list[Any] = []
    for part in content:
        if column and _is_mark(part):
            parts.append({"type": "image", "image": rest.take(part.get("index"))})
        elif column and not in_parts and MARK in _text_of(part):
            parts += _split(part["text"], rest)
        else:
            parts.append(_part(part, folder))
    return {**message, "content": parts}


def _split(text: str, rest: _Images) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(text.split(MARK)):
        if number:
            yield {"type": "image", "image": rest.take()}
        if piece:
            yield {"type": "text", "text": piece}


def _part(part: Any, folder: Path) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "image_url" and "image_url" in part:
        url = part["image_url"]
        return {"type": "image", "image": _image(url["url"] if _has_url(url) else url, folder, "image_url")}
    if part.get("type") == "image" and part.keys() in ({"type", "path"}, {"type", "url"}):
        given = part.get("path", part.get("url"))
        return {"type": "image", "image": _image(given, folder, "the image")}
    if part.get("type") == "image" and isinstance(part.get("image"), str | Mapping):
        return {"type": "image", "image": _image(part["image"], folder, "the image")}
    return part


def _has_url(value: Any) -> bool:
    return isinstance(value, Mapping) and "url" in value


def _image(value: Any, folder: Path, where: str) -> Any:
    """Return an image as bytes, or unchanged if it is one already: pixels or an image of Pillow."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    if isinstance(value, str):
        return _decoded(value, where) if value.startswith("data:") else _read(value, folder, where)
    if value is None:
        raise RowFaultError(f"{where}: has neither bytes nor path")
    return value


def _decoded(url: str, where: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise RowFaultError(f"{where}: is not a data URI in base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowFaultError(f"{where}: is not valid base64: {error}") from None


def _read(name: str, folder: Path, where: str) -> bytes:
    if "://" in name:
        raise RowFaultError(
            f"{where}: {name[:80]!r} is an address; load the image and give its path or bytes"
        )
    path = folder / name
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RowFaultError(f"the image {str(path)!r} cannot be read: {why}") from None
