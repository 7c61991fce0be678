from __future__ import annotations

import pytest

from tests.backend.store.blob_places import fill, open_place
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
