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
    kept.write(3, packed(b'{"a": 1}', b"", b"x" * 100_000), epoch=1)
    assert list(kept.read(3)) == [b'{"a": 1}', b"", b"x" * 100_000]
    assert list(kept.read(4)) == []


def test_keeps_only_the_newest(kept):
    for step in range(5):
        kept.write(step, packed(b"a"), epoch=1)
    kept.keep_newest(2)
    assert kept.steps == [3, 4]
    kept.keep_newest(0)
    assert kept.steps == []
