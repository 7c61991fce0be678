from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.store.blob_check import require_usable
from backend.store.folder_cache import FolderCache
from backend.store.local_blobs import LocalBlobs
from backend.store.object_blobs import ObjectBlobs, _opened
from tests.backend.store.blob_places import HAS_S3, PLACES, open_place
from tinkergym.errors import MissingExtraError


@pytest.mark.parametrize("kind", PLACES)
def test_leaves_nothing_behind_in_usable_store(kind, tmp_path, request):
    blobs = open_place(kind, tmp_path, request)[0]
    require_usable(blobs)
    assert blobs.files() == []


def test_names_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, check=lambda error: error.field == "blobs"):
        require_usable(LocalBlobs(tmp_path / "file" / "jobs"))


@pytest.mark.skipif(HAS_S3, reason="s3fs is installed")
def test_names_the_missing_extra(tmp_path):
    with pytest.raises(MissingExtraError, check=lambda error: error.field == "blobs"):
        ServiceConfig(data_dir=tmp_path, blobs="s3://bucket/prefix").blobs_in("jobs")


@pytest.mark.parametrize("place", ["carrier-pigeon://bucket"])
def test_names_a_url_of_an_unknown_kind(tmp_path, place):
    with pytest.raises(ConfigError, check=lambda error: error.field == "blobs"):
        ServiceConfig(data_dir=tmp_path, blobs=place).blobs_in("jobs")


@pytest.mark.skipif(not HAS_S3, reason="needs s3fs and moto: make test-all PARTS=s3")
@pytest.mark.parametrize(
    ("server", "said"), [("", "does not exist"), ("http://127.0.0.1:9", "cannot be used")]
)
def test_starts_no_service_on_an_unusable_bucket(s3_server, tmp_path, server, said):
    settings = ["--set", f"data_dir={tmp_path}", "--set", "blobs=s3://nobody-made-this/prefix"]
    done = subprocess.run(
        [sys.executable, "-m", "backend.app.supervisor", *settings],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "AWS_ENDPOINT_URL": server or s3_server},
        cwd=Path(__file__).parents[3],
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, said in line) == (1, True), line


@pytest.mark.skipif(not HAS_S3, reason="needs s3fs and moto: make test-all PARTS=s3")
def test_ends_where_a_server_never_answers(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        _opened.cache_clear()
        blobs = ObjectBlobs("s3://bucket", FolderCache(tmp_path, most_bytes=1), answer_seconds=1.0)
        with pytest.raises(ConfigError, check=lambda error: error.field == "blobs"):
            require_usable(blobs)
    _opened.cache_clear()
