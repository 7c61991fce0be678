"""What every implementation of `Blobs` promises; today there is one."""

import errno
import os

import pytest

from backend.store.blobs import BlobMissingError, LocalBlobs
from tinkergym.errors import StorageFullError


@pytest.fixture(params=[LocalBlobs])
def blobs(request, tmp_path):
    return request.param(tmp_path / "blobs")


def keys(blobs, key=""):
    return [blob.key for blob in blobs.files(key)]


def test_keeps_what_was_put_last_in_a_blob(blobs):
    blobs.put("a/b/one", b"first")
    blobs.put("a/b/one", bytearray(b"second"))
    assert blobs.get("a/b/one") == b"second"
    (info,) = blobs.files("a")
    assert (info.key, info.bytes) == ("b/one", 6)
    assert blobs.local("a/b/one").read_bytes() == b"second"


def test_renews_a_touched_blob_as_if_written_now(blobs):
    blobs.put("a/one", b"1")
    os.utime(blobs.local("a/one"), (0, 0))
    assert blobs.touch("a/one")
    assert blobs.files()[0].written_at > 0
    assert not blobs.touch("a/two")
    assert not blobs.touch("a/one/deeper")


@pytest.mark.parametrize("key", ["none", "a", "a/none", "a/one/deeper"])
def test_reports_missing_blob_and_deletes_it_again(blobs, key):
    blobs.put("a/one", b"1")
    with pytest.raises(BlobMissingError):
        blobs.get(key)
    for _ in range(2):
        blobs.delete(key)
    assert not blobs.has(key)
    assert blobs.files(key) == blobs.folders(key) == []


def test_lists_moves_and_deletes_a_folder_as_a_whole(blobs):
    for name in ("job-1/x", "job-1/deep/y", "job-2/z"):
        blobs.put(name, b"1")
    assert blobs.folders() == ["job-1", "job-2"]
    assert keys(blobs, "job-1") == ["deep/y", "x"]
    assert blobs.move("job-1", "away/job-1")
    assert not blobs.move("job-1", "elsewhere")
    assert keys(blobs) == ["away/job-1/deep/y", "away/job-1/x", "job-2/z"]
    for _ in range(2):
        blobs.delete("away")
    blobs.delete("job-2/z")
    assert keys(blobs) == []


def test_never_shows_and_later_removes_what_a_killed_writer_left(blobs, tmp_path):
    blobs.put("a/one", b"1")
    (tmp_path / "blobs" / "a" / ".draft-123-ab").write_bytes(b"half")
    assert keys(blobs) == ["a/one"]
    blobs.remove_drafts()
    assert [path.name for path in (tmp_path / "blobs" / "a").iterdir()] == ["one"]


def test_shortens_keys_of_the_same_blobs_below_a_key(blobs):
    blobs.below("a").below("b").put("one", b"1")
    assert blobs.get("a/b/one") == b"1"
    assert keys(blobs.below("a")) == ["b/one"]


def test_reads_folder_that_is_filled_or_copied_in(blobs, tmp_path):
    with blobs.filling("checkpoints/step-1") as folder:
        folder.mkdir()
        (folder / "weights").write_bytes(b"123")
    blobs.put_folder("teacher", blobs.local("checkpoints/step-1"))
    blobs.delete("checkpoints/step-1")
    assert blobs.get("teacher/weights") == b"123"
    assert keys(blobs) == ["teacher/weights"]


@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../up"])
def test_leads_out_by_no_key(blobs, key):
    with pytest.raises(AssertionError):
        blobs.get(key)


def test_names_full_disk_and_leaves_what_was_there(blobs, monkeypatch):
    blobs.put("one", b"before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError):
        blobs.put("one", b"after")
    assert blobs.get("one") == b"before"
    assert keys(blobs) == ["one"]
