"""Image files from environments, datasets and requests, as encoded bytes with their SHA-256.

Needs Pillow only when there is an image.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidImageError
from tinkergym.images.image_formats import broken, essential

MOST_BYTES = 4 << 20
MOST_PIXELS = 16_000_000
"""The largest image anywhere. An operator can lower them for a service, as `limits.image_bytes` and
`limits.image_pixels`, but not raise them: images are also checked where there is no service."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ORIENTATION = 0x0112
"""Where EXIF data say how a camera was held."""
_ONLY_ORIENTATION = struct.Struct("<6s2sHIHHHIHHI")
"""EXIF data that say nothing else."""
_QUICK = 1
"""PNG compression level; higher ones take several times as long and save little."""

_ALIVE: WeakValueDictionary[str, ImageFile] = WeakValueDictionary()
"""The image files of live messages by hash, for uploading to the service."""


class ImageFile:
    """An image's encoded bytes. Two with the same bytes are one object."""

    __slots__ = ("__weakref__", "data", "height", "sha256", "width")

    def __init__(self, data: bytes, sha256: str, width: int, height: int) -> None:
        self.data, self.sha256 = data, sha256
        self.width, self.height = width, height

    def __reduce__(self) -> tuple[Any, ...]:
        return kept_file, (self.data, self.sha256, self.width, self.height)

    def __repr__(self) -> str:
        return f"ImageFile({self.sha256[:12]}, {self.width} x {self.height}, {len(self.data)} bytes)"


def image_file(value: Any) -> ImageFile:
    """Return an image as a file.

    Args:
        value: Pixels ([height, width, 1, 3 or 4] uint8), a Pillow image, or the bytes of a PNG, JPEG or
            WebP file.

    Raises:
        InvalidImageError: It is not one of these, or is broken, animated, too large or has more than 8 bits
            per channel.
        MissingExtraError: Pillow is not installed.
    """
    if isinstance(value, ImageFile):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        known = _ALIVE.get(hashlib.sha256(data).hexdigest())
        return known if known is not None else _kept(data, *check_image(data))
    picture = value if hasattr(value, "save") else _of_pixels(value)
    _refuse_many_pixels(picture.size, MOST_PIXELS)
    return _kept(*_as_png(picture))


def alive(sha256: str) -> ImageFile | None:
    """Return the image with that hash, if a message still holds it."""
    return _ALIVE.get(sha256)


def check_image(
    data: bytes | bytearray, *, most_bytes: int = MOST_BYTES, most_pixels: int = MOST_PIXELS
) -> tuple[int, int]:
    """Return the width and height of an image file.

    The size and the work of decoding it are read from its structure before any pixel is decoded, so a small
    file can neither fill the memory nor occupy a processor.

    Raises:
        InvalidImageError: It is not a PNG, JPEG or WebP file, or is truncated, animated, too large, takes
            too long to decode or has more than 8 bits per channel.
        MissingExtraError: Pillow is not installed.
    """
    if len(data) > most_bytes:
        raise InvalidImageError(
            f"an image file has {len(data)} bytes, more than the limit of {most_bytes}",
            hint=_smaller("limits.image_bytes", is_lowered=most_bytes < MOST_BYTES),
        )
    with opened(data, most_pixels=most_pixels) as picture, _readable():
        _refuse_kind(picture)
        picture.load()
        if _is_turned(picture):
            as_seen(picture)  # fails now if it cannot be turned, and not in the service
        return picture.width, picture.height


def as_seen(picture: Any) -> Any:
    """Return a Pillow image as models see it: upright, on white where it is transparent, and in RGB.

    `picture` is one that `check_image` accepts.
    """
    pillow = _pillow()
    if _is_turned(picture):
        picture = _pillow("PIL.ImageOps").exif_transpose(picture)
    if picture.has_transparency_data:
        page = pillow.new("RGBA", picture.size, "white")
        page.alpha_composite(picture.convert("RGBA"))
        picture = page
    return picture.convert("RGB")


def opened(data: bytes | bytearray, *, most_pixels: int = MOST_PIXELS) -> Any:
    """Return an image file as a Pillow image with only its header read.

    Of its metadata Pillow sees only how a camera was held.

    Raises:
        InvalidImageError: It is not a PNG, JPEG or WebP file, is animated, too large, or would take
            unreasonably long to decode.
        MissingExtraError: Pillow is not installed.
    """
    pillow = _pillow()
    found = essential(data)
    _refuse_many_pixels((found.width, found.height), most_pixels)
    try:
        picture = pillow.open(io.BytesIO(found.data), formats=[found.format])
    except pillow.UnidentifiedImageError as error:  # its message is about our buffer
        raise broken("its header is damaged") from error
    except Exception as error:
        raise broken(error) from error
    _refuse_many_pixels(picture.size, most_pixels)
    if found.orientation != 1:
        picture.info["exif"] = _ONLY_ORIENTATION.pack(
            b"Exif", b"II", 42, 8, 1, _ORIENTATION, 3, 1, found.orientation, 0, 0
        )
    return picture


def _as_png(picture: Any) -> tuple[bytes, int, int]:
    file = io.BytesIO()
    with _readable():
        _refuse_kind(picture)
        if picture.mode not in {"1", "L", "LA", "P", "RGB", "RGBA"} or _is_turned(picture):
            picture = as_seen(picture)  # a PNG file would lose how the camera was held
        picture.save(file, format="PNG", compress_level=_QUICK)
    return file.getvalue(), *picture.size


def _is_turned(picture: Any) -> bool:
    return bool(picture.getexif().get(_ORIENTATION, 1) != 1)


def _refuse_kind(picture: Any) -> None:
    if (frames := getattr(picture, "n_frames", 1)) > 1:
        raise InvalidImageError(
            f"an image holds {frames} pictures, such as an animation", hint="show one of them as an image"
        )
    if picture.mode.startswith(("I", "F")):
        # Pillow would cut its values off at 255 instead of scaling them.
        raise InvalidImageError(
            f"an image has more than 8 bits per channel (Pillow's mode {picture.mode})",
            hint="convert it to 8 bits per channel",
        )


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except InvalidImageError:
        raise
    # Pillow raises many types on broken files, including SyntaxError.
    except Exception as error:
        raise broken(error) from error


def _kept(data: bytes, width: int, height: int) -> ImageFile:
    if len(data) > MOST_BYTES:
        raise InvalidImageError(
            f"an image has {len(data)} bytes as a file, more than the limit of {MOST_BYTES}",
            hint="show a smaller image",
        )
    return kept_file(data, hashlib.sha256(data).hexdigest(), width, height)


def kept_file(data: bytes, sha256: str, width: int, height: int) -> ImageFile:
    """Return the file of an image that was checked, also by another process."""
    return _ALIVE.setdefault(sha256, ImageFile(data, sha256, width, height))


def _of_pixels(value: Any) -> Any:
    shape: Any = getattr(value, "shape", ())
    if len(shape) != 3 or shape[2] not in _MODES or 0 in shape or str(getattr(value, "dtype", "")) != "uint8":
        found = (
            f"an array of dtype {value.dtype} and shape {tuple(shape)}"
            if hasattr(value, "dtype")
            else type(value).__name__
        )
        raise InvalidImageError(
            f"{found} is not an image",
            hint="use uint8 pixels [height, width, 1, 3 or 4], a Pillow image, or the bytes of a file",
        )
    _refuse_many_pixels(shape[:2], MOST_PIXELS)
    return _pillow().frombytes(_MODES[shape[2]], (int(shape[1]), int(shape[0])), value.tobytes())


def _refuse_many_pixels(size: tuple[int, int], most: int) -> None:
    if size[0] * size[1] > most:
        raise InvalidImageError(
            f"an image has {size[0]} x {size[1]} pixels, more than the limit of {most}",
            hint=_smaller("limits.image_pixels", is_lowered=most < MOST_PIXELS),
        )


def _smaller(setting: str, *, is_lowered: bool) -> str:
    return f"make it smaller, or ask the operator to raise {setting}" if is_lowered else "make it smaller"


def _pillow(module: str = "PIL.Image") -> Any:
    return import_extra(module, "images need Pillow", extra="images")
