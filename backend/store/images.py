"""Image files sent by clients, by the hash of their bytes, separately for each tenant.

What `add` acknowledged is durable. Files never change, so adding one again has no effect. A row says when an
image was last used.

An image may be deleted for new ones if no unfinished job can need it. What a job shows or learns from was
used after its creation or, if it belongs to a dataset, when the job was checked right before.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from backend.store.blobs import BlobMissingError, Blobs, tenant_folder
from backend.store.image_rows import ImageRow, ImageRows
from backend.store.usage import QuotaRoom
from tinkergym.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError, TinkerGymError
from tinkergym.images.stored_images import check_image

_log = logging.getLogger(__name__)

HELD = "held"
"""The folder, beside those of the tenants, of what is held for requests."""

_LATELY_SECONDS = 3600.0
"""An image used this recently may belong to an episode in progress, or to a job that is being created."""

_FILLED = 7 / 8
"""Making room leaves at most this part of the quota in use, or each further image would list all others."""


class Check(Protocol):
    """`check_image`, here or in another process."""

    def __call__(self, data: bytes | bytearray, *, most_bytes: int, most_pixels: int) -> tuple[int, int]:
        """Return the width and height of an image file, or raise an error."""
        ...


class ImageLimits(Protocol):
    """What a tenant may store; `GatewayLimits` has these settings."""

    @property
    def image_bytes(self) -> int:
        """Of one file."""

    @property
    def image_pixels(self) -> int:
        """Of one image."""

    @property
    def images_bytes(self) -> int:
        """Of all of the tenant's images."""

    @property
    def stored_images(self) -> int:
        """How many it may have."""


class Images:
    """One tenant's images."""

    def __init__(
        self, images: Blobs, rows: ImageRows, *, room: QuotaRoom | None = None, check: Check = check_image
    ) -> None:
        """Use the tenant's folder of `images`; it is created on the first write.

        Args:
            images: The images of all tenants.
            rows: What is known of the tenant's.
            room: Shared by all uses in this process; without it, each upload lists all images.
            check: Decodes images before they are kept.
        """
        self._all, self._folder = images, tenant_folder(rows.tenant_id)
        self._blobs, self._rows = images.below(self._folder), rows
        self._room, self._check = room or QuotaRoom(), check

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return which of these images the tenant has not sent; the others count as used now."""
        wanted = list(dict.fromkeys(hashes))
        known = self._rows.use(wanted)
        if len(known) < len(wanted) and self._rows.none():
            # Those of earlier versions, which had files only.
            files = self._blobs.files()
            if files:
                self._rows.add(
                    ImageRow(sha256=file.key, bytes=file.bytes, used_at=file.written_at) for file in files
                )
                known = self._rows.use(wanted)
        return [sha256 for sha256 in wanted if sha256 not in known]

    def require(self, hashes: Iterable[str], *, also_held: bool = False) -> None:
        """Raise an error if the tenant has not sent all these images; they count as used now.

        Args:
            hashes: Of the images.
            also_held: Whether those that are only held for a request of the tenant's are enough.

        Raises:
            NotFoundError: An image does not exist, or belongs to another tenant.
        """
        wanted = list(dict.fromkeys(hashes))
        if also_held:
            known = self._rows.use(wanted)
            wanted = [
                sha256
                for sha256 in wanted
                if sha256 not in known and not _held_keys(self._all, sha256, f"{self._folder}.")
            ]
        for sha256 in self.missing(wanted) if wanted else ():
            raise _no_image(sha256)

    def read(self, sha256: str) -> bytes:
        """Return an image file; it does not count as used.

        Raises:
            NotFoundError: The tenant has not sent it, or it was deleted.
        """
        try:
            return self._blobs.get(sha256)
        except BlobMissingError:
            raise _no_image(sha256) from None

    def add(
        self,
        sha256: str,
        data: bytes | bytearray,
        limits: ImageLimits,
    ) -> None:
        """Store an image. One that is there already counts as used now.

        To make room, images are deleted that were last used an hour before the tenant's oldest unfinished
        job was created.

        Args:
            sha256: The hash of the file.
            data: A PNG, JPEG or WebP file.
            limits: Of this image and of all that the tenant has.

        Raises:
            InvalidRequestError: The file does not match the hash.
            InvalidImageError: It is broken, animated, too large, or takes too long to decode.
            ServiceUnavailableError: The machine is too busy to check it.
            PayloadTooLargeError: The tenant's disk quota is used up.
            StorageFullError: The disk is full.
        """
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidRequestError(
                "the body does not match the SHA-256 in the URL", hint="send it again", code="wrong_hash"
            )
        if not self.missing([sha256]):
            return
        self._check(data, most_bytes=limits.image_bytes, most_pixels=limits.image_pixels)
        if not self._room.take(self._rows.tenant_id, limits.images_bytes, len(data)):
            since = self._rows.unfinished_since()
            before = (self._rows.now() if since is None else since) - _LATELY_SECONDS
            self._make_room(len(data), limits.images_bytes, limits.stored_images, before=before)
        self._blobs.put(sha256, data)
        self._rows.add([ImageRow(sha256=sha256, bytes=len(data), used_at=self._rows.now())])

    def _make_room(self, more: int, most: int, most_images: int, *, before: float) -> None:
        """Delete images last used before a time, longest ago first, if the quota is used up."""
        files = self._rows.all()
        used, left = sum(file.bytes for file in files), len(files)
        is_full = used + more > most or left >= most_images
        for file in files if is_full else []:
            has_room = used + more <= _FILLED * most and left < _FILLED * most_images
            if has_room or file.used_at >= before:
                break
            # The row first, as in `add` it comes last: an image with a row has its file.
            self._rows.remove(file.sha256)
            self._blobs.delete(file.sha256)
            used, left = used - file.bytes, left - 1
        if left >= most_images:
            raise PayloadTooLargeError(
                f"a tenant can have at most {most_images} images",
                hint=_no_room("stored_images"),
                field="images",
            )
        if used + more > most:
            raise PayloadTooLargeError(
                f"this image would exceed the limit of {most} bytes of images per tenant ({used} are used)",
                hint=_no_room("images_bytes"),
                field="images",
            )
        self._room.seen(
            self._rows.tenant_id, most, size_left=most - used - more, files_left=most_images - left - 1
        )


class HeldImages:
    """Images of one request, until it is answered: files outside their tenant's folder, without a row.

    They take no room of the tenant's. Of a gateway that was killed, the collector removes them. Thread-safe.
    """

    def __init__(self, images: Blobs, tenant_id: str) -> None:
        """Hold them among the images of all tenants."""
        self._blobs, self._holder = images, f"{tenant_folder(tenant_id)}.{secrets.token_hex(8)}"
        self._keys: list[str] = []
        self._is_over = False

    def hold(self, sha256: str, data: bytes) -> None:
        """Store an image; one that comes after the release is removed at once."""
        key = f"{_held_folder(sha256)}/{sha256}.{self._holder}"
        if key not in self._keys:
            self._blobs.put(key, data)
            self._keys.append(key)
        # After the key is in the list: either this sees the release, or the release sees the key.
        if self._is_over:
            self._blobs.delete(key)

    def end(self) -> bool:
        """Hold no more; returns whether there is something to `release`."""
        self._is_over = True
        return bool(self._keys)

    def release(self) -> None:
        """Remove the images; one that cannot be removed is left to the collector."""
        self._is_over = True
        for key in list(self._keys):
            try:
                self._blobs.delete(key)
            except (TinkerGymError, OSError):
                _log.warning("the image of an answered request is left over: %s", key, exc_info=True)


class EveryImage:
    """The images of all tenants, for workers: the tenant was checked when the images were named.

    Implements `ImageSource`.
    """

    def __init__(self, images: Blobs, owners: Callable[[str], Iterable[str]] | None = None) -> None:
        """Read from `images`.

        Args:
            images: The images of all tenants.
            owners: Returns the tenants that have sent an image; without it, the folder of each is asked.
        """
        self._blobs, self._owners = images, owners

    def read(self, sha256: str) -> bytes:
        """Return an image file.

        Raises:
            NotFoundError: No tenant has sent it, or it was deleted.
        """
        for key in self._keys(sha256):
            with suppress(BlobMissingError):
                return self._blobs.get(key)
        raise _no_image(sha256)

    def _keys(self, sha256: str) -> Iterator[str]:
        owners = [] if self._owners is None else [tenant_folder(tenant) for tenant in self._owners(sha256)]
        for folder in owners:
            yield f"{folder}/{sha256}"
        yield from _held_keys(self._blobs, sha256)
        for folder in () if owners else self._blobs.folders():
            yield f"{folder}/{sha256}"


def _held_folder(sha256: str) -> str:
    # A folder of few requests' images, which is listed fast; not one for each image, because it would stay.
    return f"{HELD}/{sha256[:2]}"


def _held_keys(images: Blobs, sha256: str, holder: str = "") -> list[str]:
    """Return the keys of an image that is held for holders whose names begin so."""
    folder, name = _held_folder(sha256), f"{sha256}.{holder}"
    return [f"{folder}/{file.key}" for file in images.files(folder) if file.key.startswith(name)]


def _no_room(setting: str) -> str:
    return (
        "end your oldest jobs: images that no unfinished job can need are deleted for new ones, after an "
        f"hour; or ask the operator to raise limits.{setting}"
    )


def _no_image(sha256: str) -> NotFoundError:
    return NotFoundError(
        f"there is no image {sha256}", hint="send it first, with PUT /v1/images/{sha256}", field="images"
    )
