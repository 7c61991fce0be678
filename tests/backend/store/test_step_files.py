from __future__ import annotations

import pytest

from backend.store.local_blobs import LocalBlobs
from backend.store.step_files import RowResults, StepFiles


@pytest.fixture
def files(tmp_path):
    return StepFiles(LocalBlobs(tmp_path), ".zlib")


def test_reads_the_highest_epoch_whoever_writes_last(files):
    files.write(3, b"of the holder", epoch=10)
    files.write(3, b"of a zombie", epoch=9)
    assert files.read(3) == b"of the holder"
    assert files.read(4) is None


def test_reads_and_removes_files_of_earlier_versions_too(files, tmp_path):
    (tmp_path / "step-000001.zlib").write_bytes(b"earlier")
    files.write(2, b"now", epoch=1)
    assert (files.steps, files.read(1)) == ([1, 2], b"earlier")
    files.keep_newest(1)
    assert (files.steps, files.read(1)) == ([2], None)


def test_orders_steps_by_number_and_ignores_other_names(files, tmp_path):
    for step in (2_000_000, 10, 9):
        files.write(step, b"a", epoch=1)
    (tmp_path / "step-1.zlib").write_bytes(b"")
    (tmp_path / "step-000010" / "other.zlib").write_bytes(b"")
    assert files.steps == [9, 10, 2_000_000]


@pytest.fixture
def results(tmp_path):
    return RowResults(LocalBlobs(tmp_path))


def test_reads_lines_of_steps_up_to_a_missing_one(results):
    for step in (1, 2, 4):
        results.write(step, [b"%d a" % step, b"%d b" % step], epoch=1)
    assert list(results.read(1, 4)) == [b"1 a", b"1 b", b"2 a", b"2 b"]
    assert list(results.read(4, 4)) == [b"4 a", b"4 b"]


def test_reads_what_the_newest_lease_wrote(results):
    results.write(1, [b"new"], epoch=2)
    results.write(1, [b"late"], epoch=1)
    assert list(results.read(1, 1)) == [b"new"]
