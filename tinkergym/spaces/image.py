"""Image: the space of images with one size, and images as PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import space_utils as _batching
from numpy.typing import NDArray

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidValueError, MissingExtraError
from tinkergym.images.stored_images import MOST_PIXELS, opened

Pixels = NDArray[np.uint8]

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class Image(spaces.Box):
    """Images as arrays: [height, width, channels] uint8, from 0 to 255.

    For Gymnasium it is a `Box`, so flattening, vectors and shared memory work.

    Example:
        >>> np.zeros((32, 48, 3), np.uint8) in Image(32, 48)
        True
    """

    def __init__(
        self,
        height: int,
        width: int,
        channels: int = 3,
        *,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Create the space.

        Args:
            height: In pixels.
            width: In pixels.
            channels: 1 for grey, 3 for red, green and blue, 4 with opacity, shown on white.
            seed: The seed for `sample`.

        Raises:
            ValueError: A side is not positive, or the number of channels is invalid.
        """
        if height < 1 or width < 1:
            raise ValueError(f"an image must be at least 1 pixel high and wide; got {height=}, {width=}")
        if channels not in _MODES:
            raise ValueError(f"channels must be 1 (grey), 3 (RGB) or 4 (RGBA); got {channels}")
        shape = (int(height), int(width), int(channels))
        super().__init__(low=0, high=255, shape=shape, dtype=np.uint8, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is such an image: an array of bytes."""
        return isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.shape == self.shape

    def to_png(self, pixels: Pixels) -> bytes:
        """Return an image as a PNG file, without loss.

        Raises:
            InvalidValueError: It is not in the space.
            MissingExtraError: Pillow is not installed.
        """
        if pixels not in self:
            raise InvalidValueError(f"the image is not in {self}")
        height, width, channels = pixels.shape
        picture = _pillow().frombytes(_MODES[channels], (width, height), pixels.tobytes())
        file = io.BytesIO()
        picture.save(file, format="PNG")
        return file.getvalue()

    def from_png(self, data: bytes) -> Pixels:
        """Return the image in a PNG file.

        The size and colours are read from the header before any pixel is decoded, so a small file can neither
        fill the memory nor occupy a processor.

        Raises:
            InvalidValueError: It is not a PNG file, is truncated, or has another size or other colours.
            MissingExtraError: Pillow is not installed.
        """
        height, width, channels = self.shape
        asked = ("PNG", (width, height), _MODES[channels])
        try:
            with opened(data, most_pixels=max(MOST_PIXELS, width * height)) as picture:
                found = (picture.format, picture.size, picture.mode)
                if found == asked:
                    array = np.array(picture, dtype=np.uint8).reshape(self.shape)
        except MissingExtraError:
            raise
        # Pillow raises many types on broken files, including SyntaxError.
        except Exception as error:
            raise InvalidValueError(f"this is not a readable PNG file: {error}") from error
        if found != asked:
            form, size, mode = found
            raise InvalidValueError(
                f"the {form} file is {size[0]} x {size[1]} {mode}, "
                f"but the space requires PNG, {width} x {height} {_MODES[channels]}"
            )
        return array

    def __repr__(self) -> str:
        return f"Image({', '.join(map(str, self.shape))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self.shape == other.shape

    # Like all of Gymnasium's spaces, which are mutable.
    __hash__ = None  # type: ignore[assignment]


@_batching.batch_differing_spaces.register(Image)
def _batch_differing(each: Sequence[Image]) -> spaces.Space[Any]:  # type: ignore[misc]
    # Gymnasium looks up the exact type, so being a Box subclass is not enough here.
    return _batching.batch_differing_spaces.dispatch(spaces.Box)(each)


def _pillow() -> Any:
    return import_extra("PIL.Image", "PNG files need Pillow", extra="images")
