"""Images in observations: under which keys they are shown, and how they become parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidImageError, UnsupportedPartError
from tinkergym.images.stored_images import image_file
from tinkergym.trajectory.content_parts import ImagePart, Part
from tinkergym.user_code.quoting import quoted, type_in_words

_IMAGE_KEYS = ("image", "images")


def shows_images(observation: Mapping[Any, Any]) -> bool:
    """Whether there are images to show.

    Raises:
        UnsupportedPartError: An image is under a key that is not supported.
    """
    found = False
    for key, value in observation.items():
        if key in _IMAGE_KEYS:
            found = found or not _is_empty(value)
        elif is_image(value):
            raise UnsupportedPartError(
                f"the observation has an image under {quoted(key)!r}",
                hint="put it under 'image' for the model to see it, or leave it out",
            )
    return found


def images_of(observation: Mapping[Any, Any]) -> list[Part]:
    """Return the images under `image` and `images`.

    Raises:
        InvalidImageError: One is broken, or `images` is not a list.
    """
    images = [] if _is_empty(observation.get("image")) else [observation["image"]]
    if not _is_empty(observation.get("images")):
        several = observation["images"]
        # Both a tuple space and a stack of pictures.
        stacked = len(getattr(several, "shape", ())) == 4
        if not stacked and not isinstance(several, list | tuple):
            raise InvalidImageError(
                f"the observation's 'images' must be a list of images, not {type_in_words(several)}"
            )
        images += list(several)
    return [image_part(image, f"image {number} of the observation") for number, image in enumerate(images)]


def image_part(image: Any, where: str) -> ImagePart:
    """Return an image as a part; `where` is for errors.

    Raises:
        InvalidImageError: It is broken, animated or too large.
    """
    if isinstance(image, ImagePart):
        return image
    try:
        return ImagePart.of(image_file(image))
    except InvalidImageError as error:
        raise InvalidImageError(f"{where}: {error.message}", hint=error.hint) from error


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | bytes | Sequence) and len(value) == 0)


def is_image(value: Any) -> bool:
    """Whether a value is pixels: unsigned bytes in rows and columns of 1, 3 or 4 channels."""
    if isinstance(value, str | tuple | list):
        return False
    shape: Any = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] in (1, 3, 4) and str(getattr(value, "dtype", "")) == "uint8"
