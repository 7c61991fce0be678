from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.store.blob_check import require_usable
from backend.store.folder_cache import FolderCache
from backend.store.local_blobs import LocalBlobs
from backend.store.object_blobs import ObjectBlobs, _opened
from tests.backend.s3_server import HAS_S3, NEEDS_S3
from tests.backend.store.blob_places import PLACES, open_place
from tinkergym.errors import MissingExtraError, StorageFullError


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
        env={**os.environ, "AWS_ENDPOINT_URL": server or s3_server.url},
        cwd=Path(__file__).parents[3],
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, said in line) == (1, True), line


@pytest.mark.skipif(not HAS_S3, reason=NEEDS_S3)
def test_ends_where_a_server_never_answers(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        _opened.cache_clear()
        blobs = ObjectBlobs("s3://bucket", FolderCache(tmp_path, most_bytes=1), answer_seconds=1.0)
        with pytest.raises(ConfigError, check=lambda error: error.field == "blobs"):
            require_usable(blobs)
    _opened.cache_clear()


class ServerError(Exception):
    """What botocore raises; s3fs turns it into an `OSError` that has it as its cause."""

    def __init__(self, code: str, status: int) -> None:
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class Refusing(AbstractFileSystem):
    """A store of buckets each of which says in its own way that it takes nothing."""

    protocol = "refusing"

    def pipe_file(self, path, value, **_settings):
        match path.split("/")[0]:
            case "forbidden":
                raise PermissionError("Access Denied")
            case "disk":
                raise OSError(errno.ENOSPC, "No space left")
            case "odd":
                raise OSError(errno.EIO, "QuotaExceeded.txt") from ServerError("InternalError", 500)
            case "status":
                raise OSError(errno.EIO, "Unknown") from ServerError("Unknown", 507)
            case code:
                raise OSError(errno.EIO, "Unknown") from ServerError(code, 403)


@pytest.fixture
def refusing(tmp_path):
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    cache = FolderCache(tmp_path, most_bytes=1)
    return lambda bucket: require_usable(ObjectBlobs(f"refusing://{bucket}/jobs", cache))


def test_tells_missing_rights_from_another_fault(refusing):
    hints = set()
    for bucket in ("forbidden", "odd"):
        with pytest.raises(ConfigError) as refused:
            refusing(bucket)
        assert refused.value.field == "blobs"
        hints.add(refused.value.hint)
    assert len(hints) == 2


@pytest.mark.parametrize("bucket", ["QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "disk", "status"])
def test_names_a_full_bucket(refusing, bucket):
    with pytest.raises(StorageFullError):
        refusing(bucket)
