"""Images in requests of the OpenAI API: checked in a child process, and kept as uploaded ones are."""

from __future__ import annotations

import hashlib

from fastapi import Request

from backend.gateway.routes_images import keep_image
from backend.gateway.wiring import parts_of
from backend.store.store import TenantStore
from tinkergym.images.stored_images import ImageFile, alive
from tinkergym.openai_api.chat_messages import ReadImage


def image_reader(request: Request, tenant: TenantStore) -> ReadImage:
    """Return a function that keeps an image for this tenant; it blocks while the image is checked."""
    parts = parts_of(request)
    limits = parts.config.limits

    def read(data: bytes) -> ImageFile:
        sha256 = hashlib.sha256(data).hexdigest()
        # Decoded for its size, also if it is stored already; not once more to be stored.
        size = parts.image_check(data, most_bytes=limits.image_bytes, most_pixels=limits.image_pixels)
        keep_image(parts, tenant, sha256, data, check=lambda *_, **__: size)
        return alive(sha256) or ImageFile(data, sha256, *size)

    return read
