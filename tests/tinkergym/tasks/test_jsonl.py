import hashlib
import os
import pickle

import numpy as np
import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import JsonlTasks

LINES = '{"q": "1+1", "a": 2}\n\n{"q": "Grüße", "a": "世界"}\n{"q": "3+3", "a": 6}'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.jsonl").write_text(LINES, encoding="utf-8")
    (tmp_path / "test.jsonl").write_text('{"q": "held out"}\n', encoding="utf-8")
    return tmp_path


def test_reads_tasks_as_objects_of_file_in_order(folder):
    tasks = JsonlTasks(folder, split="train")
    assert len(tasks) == 3
    assert [task["q"] for task in tasks] == ["1+1", "Grüße", "3+3"]
    assert tasks[-1]["a"] == 6
    assert tasks[1:] == [tasks[1], tasks[2]]
    with pytest.raises(IndexError):
        tasks[3]


def test_names_file_directly(folder):
    assert list(JsonlTasks(folder / "test.jsonl")) == [{"q": "held out"}]


def test_reads_nothing_before_the_first_use(folder):
    tasks = JsonlTasks(folder, split="test")
    (folder / "test.jsonl").write_text('{"q": "later"}\n')
    assert tasks[0] == {"q": "later"}


def test_takes_fingerprint_from_hash_of_file(folder):
    train = JsonlTasks(folder, split="train")
    assert train.fingerprint == hashlib.sha256(LINES.encode()).hexdigest()
    assert train.fingerprint != JsonlTasks(folder, split="test").fingerprint


def test_names_task_by_option_or_draws_it_by_seed(folder):
    tasks = JsonlTasks(folder, split="train")
    index, task = tasks.choose(np.random.default_rng(0), {"task_index": 2})
    assert (index, task["q"]) == (2, "3+3")
    drawn = [tasks.choose(np.random.default_rng(seed))[0] for seed in range(30)]
    assert drawn == [tasks.choose(np.random.default_rng(seed), {})[0] for seed in range(30)]
    assert set(drawn) == {0, 1, 2}


@pytest.mark.parametrize("index", [-1, 3, "1", 1.0, True])
def test_rejects_task_that_is_not_there(folder, index):
    with pytest.raises(InvalidRequestError) as caught:
        JsonlTasks(folder, split="train").choose(np.random.default_rng(0), {"task_index": index})
    assert caught.value.field == "task_index"


def test_rejects_unknown_split_with_those_that_are_there(folder):
    with pytest.raises(InvalidRequestError) as caught:
        JsonlTasks(folder, split="dev")
    assert caught.value.field == "split"


def test_rejects_a_missing_and_an_empty_file(tmp_path):
    with pytest.raises(InvalidRequestError) as caught:
        JsonlTasks(tmp_path / "none.jsonl")
    assert caught.value.field == "path"
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(InvalidRequestError) as caught:
        len(JsonlTasks(tmp_path / "empty.jsonl"))
    assert caught.value.field == "path"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[1]", "object"),
        ('{"a": NaN}', "NaN"),
    ],
)
def test_names_bad_line_by_file_and_number(tmp_path, line, reason):
    (tmp_path / "bad.jsonl").write_text(f'{{"q": 1}}\n{line}\n')
    tasks = JsonlTasks(tmp_path / "bad.jsonl")
    assert tasks[0] == {"q": 1}
    with pytest.raises(InvalidRequestError, match=rf"task 1 of bad.jsonl.*{reason}"):
        tasks[1]


def test_pickles_tasks(folder):
    tasks = JsonlTasks(folder, split="train")
    assert list(pickle.loads(pickle.dumps(tasks))) == list(tasks)


def test_rejects_split_of_a_single_file(folder):
    with pytest.raises(InvalidRequestError) as caught:
        JsonlTasks(folder / "test.jsonl", split="test")
    assert caught.value.field == "split"


def test_rejects_file_that_changes_while_it_is_used(folder):
    tasks = JsonlTasks(folder, split="train")
    assert len(tasks) == 3
    (folder / "train.jsonl").write_text('{"q": "another, and longer than before"}\n' * 9)
    with pytest.raises(InvalidRequestError) as caught:
        tasks[0]
    assert caught.value.field == "path"
    assert len(JsonlTasks(folder, split="train")) == 9


def test_does_not_take_folder_for_a_file(tmp_path):
    (tmp_path / "train.jsonl").mkdir()
    with pytest.raises(InvalidRequestError) as refused:
        JsonlTasks(tmp_path, split="train")
    assert refused.value.field == "split"
    (tmp_path / "test.jsonl").write_text("{}")
    tasks = JsonlTasks(tmp_path, split="test")
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "test.jsonl").mkdir()
    with pytest.raises(InvalidRequestError) as caught:
        len(tasks)
    assert caught.value.field == "path"


def test_takes_file_written_again_with_same_bytes_for_same_data(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"q": "a"}\n')
    tasks = JsonlTasks(path)
    assert tasks[0] == {"q": "a"}
    path.unlink()
    path.write_text('{"q": "a"}\n')
    os.utime(path, (1e9, 1e9))
    assert tasks[0] == {"q": "a"}
    path.write_text('{"q": "other"}\n')
    with pytest.raises(InvalidRequestError) as caught:
        tasks[0]
    assert (caught.value.field, caught.value.code) == ("path", "data_changed")
    assert JsonlTasks(path)[0] == {"q": "other"}
