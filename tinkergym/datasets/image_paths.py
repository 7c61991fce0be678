"""Images in a data file, given by path: `{"type": "image", "path": "images/7.png"}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkergym.images.stored_images import MOST_BYTES

_KEYS = ("messages", "prompt", "completion", "chosen", "rejected")


def with_images(row: Any, folder: Path) -> Any:
    """Return a row with the image files loaded in place of their paths.

    Args:
        row: A row of the file.
        folder: The folder for relative paths: the data file's.

    Raises:
        ValueError: A file cannot be read, or is too large for an image.
    """
    if not isinstance(row, dict):
        return row
    return row | {key: [_message(one, folder) for one in row[key]] for key in _KEYS if _is_list(row.get(key))}


def _message(message: Any, folder: Path) -> Any:
    if not isinstance(message, dict) or not _is_list(message.get("content")):
        return message
    return message | {"content": [_part(part, folder) for part in message["content"]]}


def _part(part: Any, folder: Path) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image" or set(part) != {"type", "path"}:
        return part
    path = folder / str(part["path"])
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the image {str(path)!r} cannot be read: {error.strerror or error}") from None
    return {"type": "image", "image": data}


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
