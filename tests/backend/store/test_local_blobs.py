"""What a folder's disk says when it is away; what all blobs promise is in `test_blobs.py`."""

import pytest

from backend.errors import BlobsUnavailableError
from backend.store.local_blobs import LocalBlobs
from tests.backend.store.blob_places import break_disk_at, closed, fill


@pytest.fixture
def blobs(tmp_path):
    blobs = LocalBlobs(tmp_path / "disk" / "blobs")
    fill(blobs, "step-1", weights=b"123")
    return blobs


def fill_again(blobs):
    with blobs.filling("step-1") as folder:
        folder.mkdir()


def fill_while_closed(blobs):
    with blobs.filling("step-2") as folder, closed(folder.parent.parent):
        folder.mkdir()


@pytest.mark.parametrize(
    "use",
    [
        lambda blobs: blobs.get("step-1/weights"),
        lambda blobs: blobs.has("step-1/weights"),
        lambda blobs: blobs.files("step-1"),
        lambda blobs: blobs.folders("step-1"),
        lambda blobs: blobs.reading("step-1/weights").__enter__(),
        lambda blobs: blobs.local("step-1"),
        lambda blobs: blobs.local("step-1", ["weights"]),
        lambda blobs: blobs.put("step-1/weights", b"123"),
        lambda blobs: blobs.delete("step-1"),
        fill_again,
    ],
)
def test_waits_for_folder_that_may_not_be_used(blobs, use, tmp_path):
    with closed(tmp_path / "disk"), pytest.raises(BlobsUnavailableError):
        use(blobs)
    use(blobs)


def test_waits_when_the_disk_goes_while_a_folder_is_filled(blobs):
    with pytest.raises(BlobsUnavailableError):
        fill_while_closed(blobs)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("weights", lambda blobs: blobs.get("step-1/weights")),
        ("manifest.json", lambda blobs: blobs.local("step-1")),
    ],
)
def test_waits_for_disk_that_fails_while_it_is_read(blobs, name, read, tmp_path):
    break_disk_at(tmp_path / "disk" / "blobs" / "step-1" / name)
    with pytest.raises(BlobsUnavailableError):
        read(blobs)
