"""Image files that clients sent, by the hash of their bytes, each tenant's apart.

What `add` acknowledged is durable. A file is never changed, so adding it again changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress

from backend.store.blobs import BlobMissingError, Blobs
from tinkergym.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError
from tinkergym.images.files import check_image

_LATELY_SECONDS = 3600.0
"""An image that was sent so lately may be of an episode that is being played."""


_MOST_IMAGES = 50_000
"""Of one tenant. A small file takes more of the disk than its size, and each upload looks at all of them."""


class Images:
    """One tenant's images."""

    def __init__(self, images: Blobs, tenant_id: str, *, most_images: int = _MOST_IMAGES) -> None:
        """Use the tenant's folder of `images`; nothing is made until something is written."""
        # A tenant's id comes from an operator and may hold anything; a key may not.
        self._blobs = images.below(hashlib.sha256(tenant_id.encode()).hexdigest()[:32])
        self._most_images = most_images

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return which of these images the tenant has not sent."""
        return [sha256 for sha256 in dict.fromkeys(hashes) if not self._blobs.has(sha256)]

    def require(self, hashes: Iterable[str]) -> None:
        """Refuse images that the tenant has not sent.

        Raises:
            NotFoundError: It is not here, or is another tenant's.
        """
        for sha256 in self.missing(hashes):
            raise _no_image(sha256)

    def add(
        self,
        sha256: str,
        data: bytes | bytearray,
        *,
        most_bytes: int,
        most_pixels: int,
        most_in_all: int,
        may_forget: bool,
    ) -> None:
        """Keep an image.

        Args:
            sha256: Its name.
            data: A PNG, JPEG or WebP file.
            most_bytes: Of the file.
            most_pixels: Of the image.
            most_in_all: Bytes that the tenant may have.
            may_forget: Whether the oldest images may go to make room.

        Raises:
            InvalidRequestError: The file is not what its name says.
            InvalidImageError: It is broken, animated or too large.
            PayloadTooLargeError: The tenant's share of the disk is used up.
            StorageFullError: The disk is full.
        """
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidRequestError("the body's SHA-256 is not the image's name", hint="send it again")
        if not self.missing([sha256]):
            return
        check_image(data, most_bytes=most_bytes, most_pixels=most_pixels)
        self._make_room(most_in_all, len(data), may_forget=may_forget)
        self._blobs.put(sha256, data)

    def _make_room(self, most: int, more: int, *, may_forget: bool) -> None:
        files = sorted(self._blobs.files(), key=lambda file: file.written_at)
        used, left = sum(file.bytes for file in files), len(files)
        before = time.time() - _LATELY_SECONDS
        for file in files if may_forget else []:
            if (used + more <= most and left < self._most_images) or file.written_at >= before:
                break
            self._blobs.delete(file.key)
            used, left = used - file.bytes, left - 1
        if left >= self._most_images:
            raise PayloadTooLargeError(
                f"a tenant may have {self._most_images} images",
                hint="once your jobs have ended, images older than an hour make room",
                field="images",
            )
        if used + more > most:
            raise PayloadTooLargeError(
                f"this image needs more than the {most} bytes of images that a tenant may have ({used} are "
                "used)",
                hint="once your jobs have ended, images older than an hour make room; or let the operator "
                "raise limits.images_bytes",
                field="images",
            )


class EveryImage:
    """The images of all tenants, for a worker: whose they are was checked when they were named.

    Implements `ImageSource`.
    """

    def __init__(self, images: Blobs) -> None:
        """Look in `images`."""
        self._blobs = images

    def read(self, sha256: str) -> bytes:
        """Return a file.

        Raises:
            NotFoundError: No tenant has sent it, or it is no longer here.
        """
        for folder in self._blobs.folders():
            with suppress(BlobMissingError):
                return self._blobs.get(f"{folder}/{sha256}")
        raise _no_image(sha256)


def _no_image(sha256: str) -> NotFoundError:
    return NotFoundError(
        f"there is no image {sha256}", hint="send it first, with PUT /v1/images/{sha256}", field="images"
    )
