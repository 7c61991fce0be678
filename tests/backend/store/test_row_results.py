import pytest

from backend.store.local_blobs import LocalBlobs
from backend.store.row_results import RowResults


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
