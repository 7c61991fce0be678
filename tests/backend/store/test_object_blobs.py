from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from backend.errors import BlobsUnavailableError
from backend.store.folder_cache import FolderCache
from backend.store.object_blobs import ObjectBlobs

MIB, MOST_MIB = 256, 64


def test_moves_large_folder_with_little_memory(bucket, tmp_path):
    script = Path(__file__).with_name("upload_memory.py")
    done = subprocess.run(
        [sys.executable, script, bucket, tmp_path, str(MIB)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    uploaded, downloaded = map(int, done.stdout.split())
    assert (uploaded < MOST_MIB, downloaded < MOST_MIB) == (True, True), done.stdout


class Silent(AsyncFileSystem):
    """A store that accepts calls and says nothing."""

    protocol = "silent"
    asked = 0

    async def _never(self, *_args, **_settings):
        type(self).asked += 1
        await asyncio.Event().wait()

    _info = _ls = _find = _cat_file = _get_file = _rm = _pipe_file = _never


@pytest.fixture(scope="session")
def loop():
    """fsspec's thread and its loop, which stay."""
    return fsspec.asyn.get_loop()


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize(
    "ask",
    [
        lambda blobs: blobs.get("a"),
        lambda blobs: blobs.has("a"),
        lambda blobs: blobs.files("a"),
        lambda blobs: blobs.folders("a"),
        lambda blobs: blobs.delete("a"),
        lambda blobs: blobs.reading("a").__enter__(),
        lambda blobs: blobs.local("a"),
        lambda blobs: blobs.put("a", b""),
    ],
)
def test_waits_for_no_store_that_never_answers(ask, tmp_path):
    fsspec.register_implementation("silent", Silent, clobber=True)
    blobs = ObjectBlobs("silent://b", FolderCache(tmp_path, most_bytes=1), answer_seconds=0.02)
    before = Silent.asked
    with pytest.raises(BlobsUnavailableError):
        ask(blobs)
    assert Silent.asked == before + 1
