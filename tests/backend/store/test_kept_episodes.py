import zlib

import pytest

from backend.store.kept_episodes import KeptEpisodes
from backend.store.local_blobs import LocalBlobs


@pytest.fixture
def kept(tmp_path):
    return KeptEpisodes(LocalBlobs(tmp_path))


def packed(*bodies):
    return [zlib.compress(body) for body in bodies]


def test_restores_episodes_as_they_were_stored(kept):
    kept.write(3, packed(b'{"a": 1}', b"", b"x" * 100_000))
    assert list(kept.read(3)) == [b'{"a": 1}', b"", b"x" * 100_000]
    assert list(kept.read(4)) == []


def test_changes_nothing_by_writing_a_step_again(kept, tmp_path):
    kept.write(3, packed(b"a"))
    before = [path.read_bytes() for path in tmp_path.iterdir()]
    kept.write(3, packed(b"a"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == before


def test_orders_steps_by_number_and_ignores_other_files(kept, tmp_path):
    for step in (2_000_000, 10, 9):
        kept.write(step, packed(b"a"))
    (tmp_path / "step-1.zlib").write_bytes(b"")
    assert kept.steps == [9, 10, 2_000_000]


def test_keeps_only_the_newest(kept):
    for step in range(5):
        kept.write(step, packed(b"a"))
    kept.keep_newest(2)
    assert kept.steps == [3, 4]
    kept.keep_newest(0)
    assert kept.steps == []
