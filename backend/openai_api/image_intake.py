"""Images in requests of the OpenAI API: checked in a child process, and kept as uploaded ones are."""

from __future__ import annotations

import hashlib

from fastapi import Request

from backend.gateway.wiring import parts_of
from backend.store.images import Images
from backend.store.store import TenantStore
from tinkergym.images.stored_images import ImageFile, alive
from tinkergym.openai_api.chat_messages import ReadImage


def image_reader(request: Request, tenant: TenantStore) -> ReadImage:
    """Return a function that keeps an image for this tenant; it blocks while the image is checked."""
    parts = parts_of(request)
    limits = parts.config.limits

    def read(data: bytes) -> ImageFile:
        sha256 = hashlib.sha256(data).hexdigest()
        width, height = parts.image_check(
            data, most_bytes=limits.image_bytes, most_pixels=limits.image_pixels
        )
        Images(parts.config.images, tenant.images, room=parts.image_room, check=parts.image_check).add(
            sha256,
            data,
            most_bytes=limits.image_bytes,
            most_pixels=limits.image_pixels,
            most_in_all=limits.images_bytes,
            most_images=limits.stored_images,
            unfinished_since=tenant.unfinished_since(),
        )
        return alive(sha256) or ImageFile(data, sha256, width, height)

    return read
