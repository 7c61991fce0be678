from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from backend.errors import BlobsUnavailableError
from backend.store.folder_cache import FolderCache
from backend.store.object_blobs import ObjectBlobs, _opened
from tests.backend.s3_server import HAS_S3, NEEDS_S3

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


class Breaking(BaseHTTPRequestHandler):
    """A server of one blob, whose link breaks after each quarter of it."""

    content = bytes(range(256)) * 2048
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._begin(200, len(self.content))

    def do_GET(self):
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self._begin(206 if start else 200, len(self.content) - start)
        self.wfile.write(self.content[start : start + len(self.content) // 4])
        self.close_connection = True

    def _begin(self, status, size):
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def breaking_s3(monkeypatch):
    """The only S3 server of this process for a while."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        _opened.cache_clear()
        yield "s3://bucket"
        _opened.cache_clear()
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not HAS_S3, reason=NEEDS_S3)
def test_downloads_large_file_over_link_that_breaks(loop, breaking_s3, tmp_path):
    blobs = ObjectBlobs(breaking_s3, FolderCache(tmp_path, most_bytes=1))
    with blobs.reading("a") as path:
        assert path.read_bytes() == Breaking.content
