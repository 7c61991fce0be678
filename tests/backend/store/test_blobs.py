"""What every implementation of `Blobs` promises."""

import errno
import os
import pickle
import time

import pytest

from backend.errors import BlobsUnavailableError
from backend.store.blobs import BlobMissingError
from backend.store.local_blobs import LocalBlobs
from tests.backend.store.blob_places import PLACES, fill, open_place
from tinkergym.errors import CheckpointCorruptError, StorageFullError


@pytest.fixture(params=PLACES)
def places(request, tmp_path):
    return open_place(request.param, tmp_path, request)


@pytest.fixture
def blobs(places):
    return places[0]


@pytest.fixture
def elsewhere(places):
    """The same blobs, on another node."""
    return places[1]


def keys(blobs, key=""):
    return [blob.key for blob in blobs.files(key)]


def test_returns_on_any_node_what_was_put(blobs, elsewhere):
    before = time.time() - 2.0
    blobs.put("a/b/one", bytearray(b"first"))
    assert elsewhere.get("a/b/one") == b"first"
    (info,) = elsewhere.files("a")
    assert (info.key, info.bytes) == ("b/one", 5)
    assert info.written_at > before


@pytest.mark.parametrize("key", ["none", "a", "a/none", "a/one/deeper"])
def test_reports_missing_blob_and_deletes_it_again(blobs, key):
    blobs.put("a/one", b"1")
    with pytest.raises(BlobMissingError):
        blobs.get(key)
    for _ in range(2):
        blobs.delete(key)
    assert not blobs.has(key)
    assert blobs.files(key) == blobs.folders(key) == []


def test_lists_and_deletes_a_folder_as_a_whole(blobs):
    for name in ("job-1/x", "job-1/deep/y", "job-2/z"):
        blobs.put(name, b"1")
    assert blobs.folders() == ["job-1", "job-2"]
    assert keys(blobs, "job-1") == ["deep/y", "x"]
    for _ in range(2):
        blobs.delete("job-1")
    blobs.delete("job-2/z")
    assert keys(blobs) == []


def test_shortens_keys_of_the_same_blobs_below_a_key(blobs):
    blobs.below("a").below("b").put("one", b"1")
    assert blobs.get("a/b/one") == b"1"
    assert keys(blobs.below("a")) == ["b/one"]
    assert blobs.below("a").where("b/one") == blobs.where("a/b/one")


def test_reads_filled_folder_on_every_node(blobs, elsewhere):
    fill(blobs, "job-1/step-1.e1", weights=b"123", state=b"45")
    for node in (blobs, elsewhere, pickle.loads(pickle.dumps(elsewhere))):
        folder = node.local("job-1/step-1.e1")
        assert (folder / "weights").read_bytes() == b"123"
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "state", "weights"]
    assert (elsewhere.local("job-1/step-1.e1", ["state"]) / "state").read_bytes() == b"45"


def test_keeps_what_a_zombie_of_an_older_epoch_writes_apart(blobs, elsewhere):
    fill(elsewhere, "job-1/step-1.e3", weights=b"of the holder")
    fill(blobs, "job-1/step-1.e2", weights=b"of the zombie")
    blobs.delete("job-1/step-1.e2")
    assert (elsewhere.local("job-1/step-1.e3") / "weights").read_bytes() == b"of the holder"


def test_shows_no_folder_before_its_manifest(blobs, elsewhere):
    with pytest.raises(RuntimeError), blobs.filling("job-1/step-1.e1") as folder:
        folder.mkdir()
        (folder / "weights").write_bytes(b"half")
        raise RuntimeError("stopped in the middle")
    with pytest.raises(BlobsUnavailableError):
        elsewhere.local("job-1/step-1.e1")
    fill(blobs, "job-1/step-1.e1", weights=b"whole")
    assert (elsewhere.local("job-1/step-1.e1") / "weights").read_bytes() == b"whole"


@pytest.mark.parametrize("lost", ["manifest.json", "weights"])
def test_takes_what_is_missing_for_unavailable_not_damaged(blobs, elsewhere, lost):
    fill(blobs, "job-1/step-1.e1", weights=b"123")
    content = blobs.get(f"job-1/step-1.e1/{lost}")
    blobs.delete(f"job-1/step-1.e1/{lost}")
    with pytest.raises(BlobsUnavailableError):
        elsewhere.local("job-1/step-1.e1")
    blobs.put(f"job-1/step-1.e1/{lost}", content)
    assert (elsewhere.local("job-1/step-1.e1") / "weights").read_bytes() == b"123"


def test_names_an_unreadable_manifest_as_damage(blobs, elsewhere):
    fill(blobs, "job-1/step-1.e1", weights=b"123")
    blobs.put("job-1/step-1.e1/manifest.json", b"{")
    with pytest.raises(CheckpointCorruptError):
        elsewhere.local("job-1/step-1.e1")


def test_lets_a_second_service_start_during_an_upload(blobs, elsewhere):
    with blobs.filling("job-1/step-1.e1") as folder:
        folder.mkdir()
        (folder / "weights").write_bytes(b"123")
        elsewhere.remove_drafts(before=time.time() - 86_400.0)
        (folder / "manifest.json").write_text('{"files": {}}')
    assert blobs.get("job-1/step-1.e1/weights") == b"123"


@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../up"])
def test_leads_out_by_no_key(blobs, key):
    with pytest.raises(AssertionError):
        blobs.get(key)


def test_removes_old_drafts_of_killed_writers_only(tmp_path):
    blobs = LocalBlobs(tmp_path)
    blobs.put("a/one", b"1")
    for name, at in ((".draft-123-old", 0.0), (".draft-123-new", time.time())):
        (tmp_path / "a" / name).write_bytes(b"half")
        os.utime(tmp_path / "a" / name, (at, at))
    assert keys(blobs) == ["a/one"]
    blobs.remove_drafts(before=time.time() - 60.0)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".draft-123-new", "one"]


def test_names_full_disk_and_leaves_what_was_there(tmp_path, monkeypatch):
    blobs = LocalBlobs(tmp_path)
    blobs.put("one", b"before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError):
        blobs.put("one", b"after")
    assert blobs.get("one") == b"before"
    assert keys(blobs) == ["one"]


def test_says_how_much_it_deleted(blobs):
    fill(blobs, "a", one=b"123", two=b"45")
    size = sum(info.bytes for info in blobs.files("a"))
    assert (blobs.delete("a"), blobs.delete("a"), blobs.files("a")) == (size, 0, [])
    blobs.put("b", b"1234")
    assert (blobs.delete("b"), blobs.has("b")) == (4, False)
