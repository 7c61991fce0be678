"""Records in the format of geometry3k: `{"images": [...], "problem": "<image>...", "answer": ...}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinkergym.errors import InvalidImageError, InvalidRequestError
from tinkergym.images.stored_images import as_seen, image_file, opened
from tinkergym_geometry.figures import Pixels

PLACEHOLDER = "<image>"
MOST_IMAGES = 16
"""Of one problem."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a record asks."""

    images: tuple[Pixels, ...]
    text: str
    answer: str
    """As the dataset writes it: a number, or LaTeX."""


def problem_of(record: Mapping[str, Any], index: int, side: int) -> Problem:
    """Read a record.

    Args:
        record: Images are what Parquet files hold, `{"bytes": ..., "path": ...}`, what the hub's library
            makes of them, images of Pillow, or the bytes themselves.
        index: Of the record, for errors.
        side: Height and width of the pictures.

    Raises:
        InvalidRequestError: It is not of this format; says what it lacks.
    """
    for name in ("problem", "answer"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise _not_of_the_format(index, f"has no text in {name!r}", record)
    images = record.get("images")
    if not isinstance(images, list | tuple) or not 1 <= len(images) <= MOST_IMAGES:
        raise _not_of_the_format(index, f"has no list of 1 to {MOST_IMAGES} images in 'images'", record)
    if record["problem"].count(PLACEHOLDER) > len(images):
        raise _not_of_the_format(
            index, f"shows more {PLACEHOLDER}s in 'problem' than it has in 'images'", record
        )
    text = record["problem"].replace(PLACEHOLDER, "").strip()
    if not text:
        raise _not_of_the_format(index, "has no text in 'problem'", record)
    try:
        pixels = tuple(fitted(_file(image), side) for image in images)
    except InvalidImageError as error:
        raise InvalidRequestError(
            f"row {index}: {error.message}",
            hint="images are the bytes of PNG, JPEG or WebP files",
            field="data",
        ) from error
    return Problem(pixels, text, record["answer"].strip())


def fitted(image: Any, side: int) -> Pixels:
    """Return an image as [side, side, 3]: as large as it fits, in the middle of white.

    Args:
        image: Pixels, an image of Pillow, or the bytes of a file.
        side: Height and width.

    Raises:
        InvalidImageError: It is none of these, broken or too large.
    """
    from PIL import Image

    with opened(image_file(image).data) as picture:
        shown = as_seen(picture)
    if max(shown.size) != side:
        scale = side / max(shown.size)
        shown = shown.resize([max(1, round(length * scale)) for length in shown.size])
    page = Image.new("RGB", (side, side), "white")
    page.paste(shown, ((side - shown.width) // 2, (side - shown.height) // 2))
    return np.asarray(page, dtype=np.uint8)


def _file(image: Any) -> Any:
    if not isinstance(image, Mapping):
        return image
    if not isinstance(image.get("bytes"), bytes):
        # A path leads out of the dataset, to a file that may be anybody's.
        raise InvalidImageError("an image is given without its bytes")
    return image["bytes"]


def _not_of_the_format(index: int, problem: str, record: Mapping[str, Any]) -> InvalidRequestError:
    return InvalidRequestError(
        f"row {index} {problem}; it has {', '.join(map(str, record)) or 'nothing'}",
        hint="a record of geometry3k has images, problem and answer; rename the columns",
        field="data",
    )
