from __future__ import annotations

import hashlib
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.jobs.dataset_records import batch_numbers, held_out_numbers, read, train_sequence, written
from backend.jobs.job_control import JobControl
from backend.store.local_blobs import LocalBlobs
from backend.store.uploads import Uploads
from tinkergym.errors import InvalidRequestError, JobCancelledError
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.refusals import explain
from tinkergym.schema.uploaded_data import DataChunk, DataManifest, TokenSequence

DATA = "0" * 64


def spec(**settings):
    return SFTSpec(**{"data": DATA, "steps": 100, **settings})


@settings(max_examples=50, deadline=None)
@given(
    records=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    seed=st.integers(0, 2**63 - 1),
    passes=st.integers(1, 3),
)
def test_gives_every_record_equally_often_however_batches_fall(records, batch_size, seed, passes):
    job = spec(batch_size=batch_size, seed=seed)
    stream = []
    step = 1
    while len(stream) < passes * records:
        stream += batch_numbers(job, records, step)
        step += 1
    counted = Counter(stream[: passes * records])
    assert counted == Counter(dict.fromkeys(range(records), passes))


def test_derives_order_from_seed_or_leaves_it_as_it_is():
    orders = [batch_numbers(spec(batch_size=20, seed=seed), 20, 1) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert batch_numbers(spec(batch_size=20), 20, 2) != orders[0]
    assert batch_numbers(spec(batch_size=6, shuffle=False), 4, 2) == [2, 3, 0, 1, 2, 3]


def context_of(folder, records, **settings):
    uploads = Uploads(LocalBlobs(folder), "ada")
    sequence = TokenSequence(token_ids=[1, 2], trained=[(1, 2)])
    body = DataChunk(kind="sft", records=[[sequence]] * records).model_dump_json().encode()
    name = hashlib.sha256(body).hexdigest()
    uploads.add_chunk(name, body, most_bytes=1000)
    data = uploads.complete(DataManifest(kind="sft", chunks=[name]), most_bytes=1000).data_id
    return SimpleNamespace(
        spec=spec(data=data, **settings),
        lease=SimpleNamespace(tenant_id="ada"),
        uploads=LocalBlobs(folder),
        control=JobControl(lambda: None),
    )


def test_refuses_to_hold_out_records_that_are_all_equal(tmp_path):
    with pytest.raises(InvalidRequestError) as caught:
        read(context_of(tmp_path, 4, held_out=0.25))
    assert caught.value.field == "held_out"


def test_stops_reading_data_in_a_cancelled_job(tmp_path):
    context = context_of(tmp_path, 1)
    assert len(read(context).train) == 1
    context.control.cancel()
    with pytest.raises(JobCancelledError):
        read(context)


def test_turns_spans_into_a_mask():
    sent = TokenSequence(token_ids=[5, 6, 7, 8, 9], trained=[(1, 2), (3, 5)])
    sequence = train_sequence(written(sent), weight=0.5)
    assert sequence.token_ids == sent.token_ids
    assert list(sequence.loss_mask) == [False, True, False, True, True]
    assert sequence.advantage == 0.5


@pytest.mark.parametrize("trained", [[(0, 1)], [(1, 1)], [(2, 4), (3, 5)], [(3, 5), (1, 2)], [(1, 6)]])
def test_rejects_spans_that_make_no_sense(trained):
    with pytest.raises(ValidationError) as refused:
        TokenSequence(token_ids=[5, 6, 7, 8, 9], trained=trained)
    assert explain(refused.value, TokenSequence).field.startswith("trained")


def test_holds_out_smallest_group_of_copies_when_all_are_larger():
    def record(first):
        return [written(TokenSequence(token_ids=[first, 1], trained=[(1, 2)]))]

    records = [record(first) for first in (1, 1, 1, 2, 2)]
    assert held_out_numbers(records, range(5), 1) == {3, 4}
    assert held_out_numbers([*records, record(3)], range(6), 1) == {5}
