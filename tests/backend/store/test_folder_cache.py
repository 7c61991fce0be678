from __future__ import annotations

import errno
import shutil
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from backend.errors import BlobsUnavailableError
from backend.store.folder_cache import FolderCache
from backend.store.object_blobs import ObjectBlobs
from tests.backend.store.blob_places import closed, fill, open_place
from tinkergym.errors import CheckpointCorruptError


@pytest.fixture
def small(tmp_path, request):
    """Two nodes whose caches have room for 10 bytes besides what was asked for last."""
    return open_place("memory", tmp_path, request, most_bytes=300, rest_seconds=0.0)


def cached(tmp_path):
    return {file.read_bytes() for file in (tmp_path / "there").rglob("weights")}


def test_removes_what_was_used_longest_ago(small, tmp_path):
    here, there = small
    for number in (1, 2, 3, 4):
        fill(here, f"step-{number}", weights=bytes([number]) * 10)
    for number in (1, 2, 1, 3):
        there.local(f"step-{number}")
    assert cached(tmp_path) == {bytes([1]) * 10, bytes([3]) * 10}
    assert (there.local("step-2") / "weights").read_bytes() == bytes([2]) * 10


def test_names_a_wrong_hash_and_keeps_nothing_of_it(small, tmp_path):
    here, there = small
    fill(here, "step-1", weights=b"123")
    for damaged in (b"124", b"12"):
        here.put("step-1/weights", damaged)
        with pytest.raises(CheckpointCorruptError):
            there.local("step-1")
        assert cached(tmp_path) == set()
    here.put("step-1/weights", b"123")
    assert (there.local("step-1") / "weights").read_bytes() == b"123"


def test_downloads_again_what_rotted_in_the_cache(small, tmp_path):
    here, there = small
    fill(here, "step-1", weights=b"123")
    (there.local("step-1") / "weights").write_bytes(b"rot")
    assert (there.local("step-1") / "weights").read_bytes() == b"123"


def test_downloads_only_the_files_that_are_needed(small):
    here, there = small
    fill(here, "step-1", weights=b"123", state=b"45")
    names = {path.name for path in there.local("step-1", ["state"]).iterdir()}
    assert names == {"manifest.json", "state"}


class ReadBySmallDisk(MemoryFileSystem):
    """A store, read by a node whose disk has room for two copies."""

    protocol = "smalldisk"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("smalldisk:/"))

    def get_file(self, rpath, lpath, **settings):
        if len(list(Path(lpath).parent.rglob("weights"))) == 2:
            raise OSError(errno.ENOSPC, "full")
        super().get_file(rpath, lpath, **settings)


@pytest.fixture
def open_node(tmp_path):
    fsspec.register_implementation("smalldisk", ReadBySmallDisk, clobber=True)
    return lambda name, rest_seconds: ObjectBlobs(
        "smalldisk://small", FolderCache(tmp_path / name, most_bytes=2**20, rest_seconds=rest_seconds)
    )


def test_makes_room_on_full_disk(open_node):
    there = open_node("there", 0.0)
    for number in (1, 2, 3):
        fill(open_node("here", 0.0), f"step-{number}", weights=bytes([number]))
        assert (there.local(f"step-{number}") / "weights").read_bytes() == bytes([number])


def test_waits_on_full_disk_while_all_copies_are_in_use(open_node):
    there = open_node("there", 600.0)
    for number in (1, 2, 3):
        fill(open_node("here", 0.0), f"step-{number}", weights=bytes([number]))
    used = [there.local(f"step-{number}") for number in (1, 2)]
    with pytest.raises(BlobsUnavailableError):
        there.local("step-3")
    shutil.rmtree(used[0])
    assert (there.local("step-3") / "weights").read_bytes() == bytes([3])


def test_waits_for_cache_that_may_not_be_used(small, tmp_path):
    here, there = small
    fill(here, "step-1", weights=b"123")
    there.local("step-1")
    with closed(tmp_path / "there"), pytest.raises(BlobsUnavailableError):
        there.local("step-1")
