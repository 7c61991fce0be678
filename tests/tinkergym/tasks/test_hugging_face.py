import datasets
import pytest

from tests.tinkergym.tasks.forms import ROWS
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import (
    HuggingFaceTasks,
    SequenceTasks,
)


def test_takes_dataset_in_memory_as_a_sequence():
    tasks = SequenceTasks(datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}), split="train")
    assert list(tasks) == ROWS


def test_finds_no_splits_in_a_saved_single_dataset(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    assert list(HuggingFaceTasks(tmp_path / "one")) == ROWS
    with pytest.raises(InvalidRequestError) as caught:
        HuggingFaceTasks(tmp_path / "one", split="train")
    assert caught.value.field == "split"
    with pytest.raises(InvalidRequestError) as caught:
        HuggingFaceTasks(tmp_path / "one", revision="main")
    assert caught.value.field == "revision"
