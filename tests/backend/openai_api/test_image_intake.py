import asyncio
import threading
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import get_args

import pytest

from backend.gateway.fair_threads import FairThreads
from backend.openai_api.image_intake import ImageReader
from backend.store.local_blobs import LocalBlobs
from tinkergym.errors import InvalidRequestError
from tinkergym.images.stored_images import alive


def test_releases_images_though_the_tenants_threads_are_taken(tmp_path):
    released, go_on = threading.Event(), threading.Event()

    class Noting(LocalBlobs):
        def delete(self, key):
            size = super().delete(key)
            released.set()
            return size

    limits = SimpleNamespace(image_bytes=9, image_pixels=9, prompt_images=2)
    config = SimpleNamespace(limits=limits, images=Noting(tmp_path))
    sizes = []

    def check(data, **_):
        sizes.append(len(data))
        return 1, 1

    parts = SimpleNamespace(config=config, image_check=check)
    opened = asynccontextmanager(get_args(ImageReader)[1].dependency)

    async def play(threads, checks):
        state = SimpleNamespace(parts=parts, route_threads=threads, image_checks=checks)
        request = SimpleNamespace(app=SimpleNamespace(state=state))
        async with opened(request, SimpleNamespace(tenant_id="ada")) as read:
            file = await asyncio.to_thread(read, b"image")
            assert alive(file.sha256) is file  # for what counts its tokens, or uploads it
            held = len(config.images.files())
            busy = asyncio.create_task(threads.run("ada", lambda: go_on.wait(120)))
            await asyncio.sleep(0)
        assert await asyncio.to_thread(released.wait, 120)
        await asyncio.to_thread(read, b"late")
        checked = len(sizes)
        with pytest.raises(InvalidRequestError):
            await asyncio.to_thread(read, b"one more than a prompt has room for")
        assert len(sizes) == checked
        go_on.set()
        await busy
        return held

    with closing(FairThreads(1, seconds=120)) as threads, closing(FairThreads(1, seconds=120)) as checks:
        assert asyncio.run(play(threads, checks)) == 1
    assert config.images.files() == []


def test_checks_images_of_chats_in_turn_with_other_tenants(tmp_path):
    limits = SimpleNamespace(image_bytes=9, image_pixels=9, prompt_images=9)
    config = SimpleNamespace(limits=limits, images=LocalBlobs(tmp_path))
    checked, order = threading.Event(), []

    def check(data, **_):
        order.append(data)
        checked.set()
        return 1, 1

    def bobs_image():
        checked.wait(0.3)  # Nothing is checked beside it.
        order.append(b"bob")

    parts = SimpleNamespace(config=config, image_check=check)
    opened = asynccontextmanager(get_args(ImageReader)[1].dependency)

    async def play(threads, checks):
        state = SimpleNamespace(parts=parts, route_threads=threads, image_checks=checks)
        request = SimpleNamespace(app=SimpleNamespace(state=state))
        bobs = asyncio.create_task(checks.run("bob", bobs_image))
        await asyncio.sleep(0)
        async with opened(request, SimpleNamespace(tenant_id="ada")) as read:
            await asyncio.gather(bobs, asyncio.to_thread(read, b"ada"))

    with closing(FairThreads(1, seconds=120)) as threads, closing(FairThreads(1, seconds=120)) as checks:
        asyncio.run(play(threads, checks))
    assert order == [b"bob", b"ada"]
