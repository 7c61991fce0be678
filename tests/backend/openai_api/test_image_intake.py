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

    async def play(threads):
        state = SimpleNamespace(parts=parts, route_threads=threads)
        request = SimpleNamespace(app=SimpleNamespace(state=state))
        async with opened(request, SimpleNamespace(tenant_id="ada")) as read:
            file = read(b"image")
            assert alive(file.sha256) is file  # for what counts its tokens, or uploads it
            held = len(config.images.files())
            busy = asyncio.create_task(threads.run("ada", lambda: go_on.wait(20)))
            await asyncio.sleep(0)
        assert await asyncio.to_thread(released.wait, 10)
        read(b"late")
        checked = len(sizes)
        with pytest.raises(InvalidRequestError):
            read(b"one more than a prompt has room for")
        assert len(sizes) == checked
        go_on.set()
        await busy
        return held

    with closing(FairThreads(1, seconds=20)) as threads:
        assert asyncio.run(play(threads)) == 1
    assert config.images.files() == []
