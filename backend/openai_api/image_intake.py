"""Images in requests of the OpenAI API: checked in a child process, and held until they are answered."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request

from backend.gateway.dependencies import Tenant
from backend.gateway.fair_threads import FairThreads
from backend.gateway.wiring import parts_of
from backend.store.images import HeldImages
from tinkergym.images.stored_images import ImageFile, alive
from tinkergym.openai_api.chat_messages import ReadImage


async def _image_reader(request: Request, tenant: Tenant) -> AsyncIterator[ReadImage]:
    parts = parts_of(request)
    limits, held = parts.config.limits, HeldImages(parts.config.images, tenant.tenant_id)
    threads: FairThreads = request.app.state.route_threads

    def read(data: bytes) -> ImageFile:
        sha256 = hashlib.sha256(data).hexdigest()
        size = parts.image_check(data, most_bytes=limits.image_bytes, most_pixels=limits.image_pixels)
        held.hold(sha256, data)
        return alive(sha256) or ImageFile(data, sha256, *size)

    try:
        yield read
    finally:
        if held.end():  # Most requests have no images, and no thread is needed.
            threads.soon(held.release)


ImageReader = Annotated[ReadImage, Depends(_image_reader)]
"""Return a function that holds an image until the response was sent; it blocks while the image is checked."""
