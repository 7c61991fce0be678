"""Images in requests of the OpenAI API: checked in a child process, and held until they are answered."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import Depends, Request

from backend.admission.request_bounds import refuse_many_images
from backend.gateway.dependencies import Tenant
from backend.gateway.fair_threads import FairThreads
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.images import HeldImages
from tinkergym.images.stored_images import ImageFile, kept_file
from tinkergym.openai_api.chat_messages import ReadImage


def image_check(request: Request, tenant_id: str) -> ReadImage:
    """Return a function that checks the images of one request, in its tenant's turn.

    It blocks: call it in a thread. It raises InvalidImageError for an image that cannot be decoded or is too
    large, and InvalidRequestError for more images than a prompt may have.
    """
    parts = parts_of(request)
    checks: FairThreads = request.app.state.image_checks
    loop, images = asyncio.get_running_loop(), 0

    def check(data: bytes) -> ImageFile:
        nonlocal images
        images += 1
        # Before they are decoded: a request has room for thousands.
        refuse_many_images(images, parts.config.limits.prompt_images, field="messages")
        # In turn with images that other tenants send: all of them have one child.
        checked = checks.run(tenant_id, partial(_checked_file, parts, data))
        return asyncio.run_coroutine_threadsafe(checked, loop).result()

    return check


def _checked_file(parts: GatewayParts, data: bytes) -> ImageFile:
    limits = parts.config.limits
    size = parts.image_check(data, most_bytes=limits.image_bytes, most_pixels=limits.image_pixels)
    return kept_file(data, hashlib.sha256(data).hexdigest(), *size)


async def _image_reader(request: Request, tenant: Tenant) -> AsyncIterator[ReadImage]:
    parts = parts_of(request)
    held = HeldImages(parts.config.images, tenant.tenant_id)
    threads: FairThreads = request.app.state.route_threads
    check = image_check(request, tenant.tenant_id)

    def read(data: bytes) -> ImageFile:
        file = check(data)
        held.hold(file.sha256, data)
        return file

    try:
        yield read
    finally:
        if held.end():  # Most requests have no images, and no thread is needed.
            threads.soon(held.release)


ImageReader = Annotated[ReadImage, Depends(_image_reader)]
"""Return a function that holds an image until the response was sent. It blocks while the image is checked:
call it in a thread."""
