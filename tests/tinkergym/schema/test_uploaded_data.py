import pytest
from pydantic import ValidationError

from tinkergym.schema.uploaded_data import DataChunk, DataManifest, TokenSequence

SEQUENCE = {"token_ids": [1, 2, 3], "trained": [(1, 3)]}


def test_counts_trained_tokens_over_spans():
    assert TokenSequence(token_ids=[1, 2, 3, 4], trained=[(1, 2), (3, 4)]).trained_tokens == 2


@pytest.mark.parametrize(
    "trained", [[(0, 1)], [(1, 1)], [(2, 1)], [(1, 9)], [(2, 3), (1, 2)], [(1, 3), (2, 3)]]
)
def test_orders_spans_within_the_tokens(trained):
    with pytest.raises(ValidationError):
        TokenSequence(token_ids=[1, 2, 3], trained=trained)


def test_requires_spans_of_all_but_prompts():
    untrained = {"token_ids": [1, 2, 3], "trained": []}
    with pytest.raises(ValidationError):
        DataChunk(kind="sft", records=[[untrained]])
    assert DataChunk(kind="prompts", records=[[untrained]], notes=[{}]).records


@pytest.mark.parametrize(("kind", "sequences"), [("sft", 2), ("preference", 1), ("sft", 0)])
def test_requires_as_many_sequences_as_kind_of_record(kind, sequences):
    with pytest.raises(ValidationError):
        DataChunk(kind=kind, records=[[SEQUENCE] * sequences])


def test_names_dataset_by_its_kind_and_chunks():
    names = {
        DataManifest(kind=kind, chunks=chunks).data_id
        for kind, chunks in (
            ("sft", ["0" * 64]),
            ("preference", ["0" * 64]),
            ("sft", ["1" * 64]),
            ("sft", ["0" * 64] * 2),
        )
    }
    assert len(names) == 4
