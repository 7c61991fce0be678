from __future__ import annotations

import hashlib
import os

import pytest

from backend.store.local_blobs import LocalBlobs
from backend.store.uploads import Uploads
from backend.store.usage import QuotaRoom
from tests.backend.store.counting_blobs import CountingBlobs
from tinkergym.errors import (
    CheckpointCorruptError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
)
from tinkergym.schema.uploaded_data import DataChunk, DataManifest

MOST = 10_000


def chunk(*records, kind="sft"):
    sequences = [[{"token_ids": ids, "trained": [[1, len(ids)]]} for ids in record] for record in records]
    body = DataChunk(kind=kind, records=sequences).model_dump_json().encode()
    return hashlib.sha256(body).hexdigest(), body


@pytest.fixture
def uploads(tmp_path):
    return Uploads(LocalBlobs(tmp_path), "ada")


def test_completes_set_when_all_its_chunks_are_there(uploads):
    chunks = [chunk([[1, 2, 3]]), chunk([[4, 5]], [[6, 900, 7, 8]])]
    manifest = DataManifest(kind="sft", chunks=[name for name, _ in chunks])
    assert uploads.complete(manifest, most_bytes=MOST).missing == manifest.chunks
    for name, body in chunks:
        uploads.add_chunk(name, body, most_bytes=MOST)
        uploads.add_chunk(name, body, most_bytes=MOST)
    view = uploads.complete(manifest, most_bytes=MOST)
    assert (view.missing, view.records, view.tokens, view.trained_tokens) == ([], 3, 9, 6)
    assert (view.longest, view.largest_token_id) == (4, 900)
    assert uploads.view(manifest.data_id) == view
    assert [record[0].token_ids for record in uploads.records(manifest.data_id)] == [
        [1, 2, 3],
        [4, 5],
        [6, 900, 7, 8],
    ]


def test_shows_a_tenant_nothing_of_another(uploads, tmp_path):
    name, body = chunk([[1, 2]])
    manifest = DataManifest(kind="sft", chunks=[name])
    uploads.add_chunk(name, body, most_bytes=MOST)
    uploads.complete(manifest, most_bytes=MOST)
    bob = Uploads(LocalBlobs(tmp_path), "bob")
    assert bob.complete(manifest, most_bytes=MOST).missing == [name]
    with pytest.raises(NotFoundError) as caught:
        list(bob.records(manifest.data_id))
    assert caught.value.field == "data"


def test_rejects_chunk_that_is_not_what_its_name_says(uploads):
    name, body = chunk([[1, 2]])
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "wrong_hash"):
        uploads.add_chunk(name, body + b" ", most_bytes=MOST)
    for bad in (b"{}", b"nothing", b'{"kind":"sft","records":[[]]}'):
        with pytest.raises(InvalidRequestError):
            uploads.add_chunk(hashlib.sha256(bad).hexdigest(), bad, most_bytes=MOST)
    two, pair = chunk([[1, 2], [1, 3]], kind="preference")
    uploads.add_chunk(two, pair, most_bytes=MOST)
    with pytest.raises(InvalidRequestError) as caught:
        uploads.complete(DataManifest(kind="sft", chunks=[two]), most_bytes=MOST)
    assert caught.value.field == "kind"


def test_holds_a_tenants_share_of_the_disk(uploads):
    name, body = chunk([list(range(100))])
    uploads.add_chunk(name, body, most_bytes=MOST)
    other, more = chunk([list(range(1, 101))])
    with pytest.raises(PayloadTooLargeError):
        uploads.add_chunk(other, more, most_bytes=len(body) + 10)
    uploads.add_chunk(name, body, most_bytes=1)  # it is there already


def test_counts_chunk_as_often_as_a_set_names_it(uploads):
    name, body = chunk([list(range(100))])
    uploads.add_chunk(name, body, most_bytes=MOST)
    often = MOST // len(body)
    # Rows that repeat themselves make equal chunks.
    view = uploads.complete(DataManifest(kind="sft", chunks=[name] * often), most_bytes=MOST)
    assert (view.records, view.tokens) == (often, 100 * often)
    more = DataManifest(kind="sft", chunks=[name] * (often + 1))
    with pytest.raises(PayloadTooLargeError):
        uploads.complete(more, most_bytes=MOST)
    with pytest.raises(NotFoundError):
        uploads.view(more.data_id)


def test_counts_sets_for_their_place_on_the_disk(uploads):
    name, body = chunk([[1, 2]])
    uploads.add_chunk(name, body, most_bytes=MOST)
    before = uploads.used_bytes()
    kept = DataManifest(kind="sft", chunks=[name] * 10)
    uploads.complete(kept, most_bytes=MOST)
    used = uploads.used_bytes()
    assert used >= before + 10 * len(name)
    uploads.complete(kept, most_bytes=used)  # it is there already
    assert uploads.used_bytes() == used
    more = DataManifest(kind="sft", chunks=[name] * 11)
    with pytest.raises(PayloadTooLargeError):
        uploads.complete(more, most_bytes=used + 100, in_use={kept.data_id})
    uploads.complete(more, most_bytes=used + 100)  # the older one goes
    with pytest.raises(NotFoundError):
        uploads.view(kept.data_id)


def test_survives_files_that_vanish_while_they_are_counted(uploads, tmp_path):
    name, body = chunk([[1, 2]])
    uploads.add_chunk(name, body, most_bytes=MOST)
    uploads.complete(DataManifest(kind="sft", chunks=[name]), most_bytes=MOST)
    used = uploads.used_bytes()
    for folder in tmp_path.glob("*/*"):
        (folder / ".part").symlink_to(folder / "gone")  # listed, and not there when it is looked at
    assert uploads.used_bytes() == used


def test_evicts_oldest_data_that_no_job_waits_for(uploads, tmp_path):
    names, sets = [], []
    for age, first in ((3, 0), (2, 100), (1, 200)):
        name, body = chunk([list(range(first, first + 50))])
        uploads.add_chunk(name, body, most_bytes=MOST)
        manifest = DataManifest(kind="sft", chunks=[name])
        uploads.complete(manifest, most_bytes=MOST)
        names.append(name)
        sets.append(manifest.data_id)
        for file in tmp_path.glob(f"*/*/{name}*"), tmp_path.glob(f"*/*/{manifest.data_id}*"):
            for path in file:
                os.utime(path, (1e9 - age, 1e9 - age))
    left = uploads.make_room(uploads.used_bytes() - 1, in_use={sets[0]})
    assert left == uploads.used_bytes()
    assert list(uploads.records(sets[0])) and list(uploads.records(sets[2]))
    with pytest.raises(NotFoundError):
        list(uploads.records(sets[1]))
    assert uploads.complete(DataManifest(kind="sft", chunks=[names[1]]), most_bytes=MOST).missing == [
        names[1]
    ]


def test_finds_a_damaged_chunk_before_it_is_trained_on(uploads, tmp_path):
    name, body = chunk([[1, 2]])
    manifest = DataManifest(kind="sft", chunks=[name])
    uploads.add_chunk(name, body, most_bytes=MOST)
    uploads.complete(manifest, most_bytes=MOST)
    (file,) = tmp_path.glob(f"*/chunks/{name}.json")
    file.write_bytes(body.replace(b"2", b"3"))
    with pytest.raises(CheckpointCorruptError):
        list(uploads.records(manifest.data_id))


def test_evicts_chunks_of_broken_upload_without_any_set(uploads, tmp_path):
    name, body = chunk([[1, 2]])
    uploads.add_chunk(name, body, most_bytes=MOST)
    for file in tmp_path.glob("*/chunks/*"):
        os.utime(file, (0, 0))
    assert uploads.make_room(0, in_use=()) == 0


def test_limits_chunks_of_a_tenant_and_evicts_oldest_set(tmp_path):
    uploads = Uploads(LocalBlobs(tmp_path), "ada", most_chunks=3)
    for first in (0, 100, 200):
        name, body = chunk([[first, 1]])
        uploads.add_chunk(name, body, most_bytes=MOST)
        uploads.complete(DataManifest(kind="sft", chunks=[name]), most_bytes=MOST)
    name, body = chunk([[300, 1]])
    with pytest.raises(PayloadTooLargeError):
        uploads.add_chunk(name, body, most_bytes=MOST)
    for file in tmp_path.glob("*/chunks/*"):
        os.utime(file, (0, 0))
    uploads.make_room(MOST, in_use=())
    uploads.add_chunk(name, body, most_bytes=MOST)


def test_lists_files_once_for_many_chunks_and_keeps_the_limit(tmp_path):
    blobs = CountingBlobs(tmp_path)
    chunks = [chunk([[number, 1]]) for number in range(200)]
    size = len(chunks[-1][1])
    uploads = Uploads(blobs, "ada", room=QuotaRoom())
    for name, body in chunks[:20]:
        uploads.add_chunk(name, body, most_bytes=200 * size)
    assert len(blobs.listed) == 1
    with pytest.raises(PayloadTooLargeError):
        for name, body in chunks:
            uploads.add_chunk(name, body, most_bytes=200 * size)
    assert uploads.used_bytes() <= 210 * size  # summaries of the last ones are not counted


@pytest.mark.parametrize("limit", ["bytes", "chunks"])
def test_gives_added_chunk_its_part_of_what_is_left(tmp_path, limit):
    blobs = CountingBlobs(tmp_path)
    chunks = [chunk([[number, 1]]) for number in (1, 2)]
    size = len(chunks[0][1])
    # Without the first chunk there would be room for the second one in an eighth of what is left.
    most_chunks, most = (8, 1000 * size) if limit == "chunks" else (1000, 8 * size)
    uploads = Uploads(blobs, "ada", room=QuotaRoom(), most_chunks=most_chunks)
    for name, body in chunks:
        uploads.add_chunk(name, body, most_bytes=most)
    assert len(blobs.listed) == 2
