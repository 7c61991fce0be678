"""What every form of tasks promises, asked of each with the same rows."""

import hashlib
import io
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import (
    GeneratorTasks,
    HuggingFaceTasks,
    JsonlTasks,
    ParquetTasks,
    SequenceTasks,
    TaskSource,
)

ROWS = [{"question": f"{i}+1", "answer": str(i + 1), "note": "世界"} for i in range(10)]
HELD_OUT = [{"question": "9+9", "answer": "18", "note": ""}]


def rows():
    yield from ROWS


def held_out():
    yield from HELD_OUT


def jsonl(folder):
    for split, tasks in (("train", ROWS), ("test", HELD_OUT)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return lambda split: JsonlTasks(folder, split=split)


def parquet(folder):
    pq.write_table(pa.Table.from_pylist(HELD_OUT), folder / "test.parquet")
    # Two shards of several row groups, as the hub has them.
    pq.write_table(pa.Table.from_pylist(ROWS[:4]), folder / "train-00000-of-00002.parquet", row_group_size=3)
    pq.write_table(pa.Table.from_pylist(ROWS[4:]), folder / "train-00001-of-00002.parquet", row_group_size=2)
    return lambda split: ParquetTasks(folder, split=split)


def hugging_face(folder):
    datasets.disable_progress_bars()
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(HELD_OUT)}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "saved"))
    return lambda split: HuggingFaceTasks(folder / "saved", split=split)


def sequence(folder):
    return lambda split: SequenceTasks({"train": ROWS, "test": HELD_OUT}, split=split)


def generator(folder):
    makers = {"train": rows, "test": held_out}
    return lambda split: GeneratorTasks(makers, 10 if split == "train" else 1, split=split)


FORMS = [jsonl, parquet, hugging_face, sequence, generator]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def make(request, tmp_path):
    return request.param(tmp_path)


def test_tasks_are_the_rows_in_order(make):
    tasks = make("train")
    assert isinstance(tasks, TaskSource)
    assert len(tasks) == 10
    assert list(tasks) == ROWS
    assert (tasks[-1], tasks[2:4]) == (ROWS[9], ROWS[2:4])
    with pytest.raises(IndexError):
        tasks[10]
    assert list(make("test")) == HELD_OUT


def test_splits_are_listed_and_an_unknown_one_is_refused_with_them(make):
    assert set(make("test").splits) == {"train", "test"}
    assert make("test").split == "test"
    for unknown in ("dev", "../train", None):
        with pytest.raises(InvalidRequestError, match=r"\['test', 'train'\]") as refused:
            make(unknown)
        assert refused.value.field == "split"


def test_an_option_names_the_task_and_else_the_seed_draws_it(make):
    tasks = make("train")
    assert tasks.choose(np.random.default_rng(0), {"task_index": np.int64(7)}) == (7, ROWS[7])
    drawn = [tasks.choose(np.random.default_rng(seed)) for seed in range(20)]
    assert drawn == [make("train").choose(np.random.default_rng(seed), {}) for seed in range(20)]
    assert all(task == ROWS[index] for index, task in drawn)
    for wrong in (-1, 10, "1", 1.0, True):
        with pytest.raises(InvalidRequestError, match="has no task"):
            tasks.choose(np.random.default_rng(0), {"task_index": wrong})


def test_a_named_task_draws_nothing_from_the_environments_chance(make):
    used, fresh = np.random.default_rng(0), np.random.default_rng(0)
    make("train").choose(used, {"task_index": 3})
    assert used.integers(10**9) == fresh.integers(10**9)


def test_equal_content_has_an_equal_fingerprint_and_other_content_another(make, tmp_path):
    first, again, other = make("train"), make("train"), make("test")
    assert first.fingerprint == again.fingerprint == pickle.loads(pickle.dumps(first)).fingerprint
    assert len({first.fingerprint, other.fingerprint, hashlib.sha256(b"").hexdigest()}) == 3


def test_a_pickled_source_reads_for_itself(make):
    tasks = make("train")
    len(tasks)
    copy = pickle.loads(pickle.dumps(tasks))
    assert (list(copy), copy.split, copy.splits) == (ROWS, "train", tasks.splits)


def test_what_an_environment_does_to_its_task_reaches_no_other(make):
    make("train")[3]["answer"] = "spoilt"
    assert make("train")[3] == ROWS[3]


def test_threads_read_the_same(make):
    tasks, read = make("train"), []
    threads = [threading.Thread(target=lambda: read.append(list(tasks))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [ROWS] * 8


def test_rows_have_one_fingerprint_wherever_they_are_kept(tmp_path):
    forms = [form(tmp_path)("train").fingerprint for form in (hugging_face, sequence, generator)]
    assert len(set(forms)) == 1


@pytest.mark.parametrize("form", [jsonl, parquet], ids=lambda form: form.__name__)
def test_nothing_is_read_at_construction_and_two_environments_read_once(form, tmp_path, monkeypatch):
    make = form(tmp_path)
    opened = []
    path_open = Path.open

    def counting(self, *arguments, **settings):
        opened.append(self.name)
        return path_open(self, *arguments, **settings)

    monkeypatch.setattr(Path, "open", counting)
    parquet_file = pq.ParquetFile
    monkeypatch.setattr(
        pq, "ParquetFile", lambda path, **more: opened.append(path) or parquet_file(path, **more)
    )

    class Env(tg.SingleTurnEnv):
        def __init__(self):
            self.tasks = make("train")

        def ask(self, options):
            return self.tasks.choose(self.np_random, options)[1]["question"]

    first, second = Env(), Env()
    assert opened == []
    assert len(first.tasks) == 10
    reads = len(opened)
    assert reads >= 1
    assert len(second.tasks) == 10
    assert len(opened) == reads
    assert first.reset(seed=1) == second.reset(seed=1)


def test_a_large_file_is_not_read_to_get_one_row(tmp_path):
    table = pa.table({"n": range(200_000), "text": [f"row {i}" for i in range(200_000)]})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=1000)
    assert ParquetTasks(tmp_path / "large.parquet")[150_500] == {"n": 150_500, "text": "row 150500"}


def test_a_data_set_in_memory_is_a_sequence():
    tasks = SequenceTasks(datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}), split="train")
    assert list(tasks) == ROWS


def test_a_saved_single_data_set_has_no_splits(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    assert list(HuggingFaceTasks(tmp_path / "one")) == ROWS
    with pytest.raises(InvalidRequestError, match="not divided"):
        HuggingFaceTasks(tmp_path / "one", split="train")
    with pytest.raises(InvalidRequestError, match="this is a folder"):
        HuggingFaceTasks(tmp_path / "one", revision="main")


def test_a_generator_is_drawn_only_as_far_as_needed_and_once():
    drawn = []

    def endless():
        for i in range(10**9):
            drawn.append(i)
            yield {"i": i}

    tasks, other = GeneratorTasks(endless, 1000), GeneratorTasks(endless, 1000)
    assert (len(tasks), drawn) == (1000, [])
    assert tasks[4] == {"i": 4}
    assert other[2] == {"i": 2}
    assert drawn == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        tasks[1000]


def test_a_generator_that_ends_or_fails_too_early_says_where():
    def broken():
        yield {"i": 0}
        raise OSError("the source dried up")

    tasks = GeneratorTasks(broken, 5)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="failed at task 1: OSError: the source dried up"):
            tasks[3]
    assert tasks[0] == {"i": 0}
    with pytest.raises(InvalidRequestError, match="ended after 10 tasks"):
        GeneratorTasks(rows, 11)[10]
    with pytest.raises(InvalidRequestError, match="at least 1"):
        GeneratorTasks(rows, 0)


@pytest.mark.parametrize(
    "empty",
    [
        lambda folder: SequenceTasks([]),
        lambda folder: (
            pq.write_table(pa.table({"a": []}), folder / "e.parquet") or ParquetTasks(folder / "e.parquet")
        ),
    ],
)
def test_no_tasks_at_all_are_refused(empty, tmp_path):
    with pytest.raises(InvalidRequestError, match="holds no tasks"):
        empty(tmp_path).choose(np.random.default_rng(0))


def test_what_is_no_task_is_refused_with_its_number():
    with pytest.raises(InvalidRequestError, match="task 1 of the list of tasks is a str"):
        SequenceTasks([{}, "text"])[1]
    with pytest.raises(InvalidRequestError, match="task 0 of the list of tasks has no fingerprint"):
        _ = SequenceTasks([{"a": object()}]).fingerprint


def test_a_broken_or_missing_file_is_refused(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing else")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        len(ParquetTasks(tmp_path / "broken.parquet"))
    with pytest.raises(InvalidRequestError, match="there is no task file"):
        ParquetTasks(tmp_path / "nothing.parquet")
    with pytest.raises(InvalidRequestError, match="which split"):
        HuggingFaceTasks("nobody/nothing")


def test_without_the_extra_the_error_names_it(tmp_path):
    parquet(tmp_path)
    hugging_face(tmp_path)
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["pyarrow", "pyarrow.parquet", "datasets"]))
import tinkergym as tg
from tinkergym.tasks import HuggingFaceTasks, ParquetTasks
parquet = ParquetTasks({str(tmp_path)!r}, split="train")
for tasks in (parquet, HuggingFaceTasks({str(tmp_path / "saved")!r}, split="train")):
    try:
        len(tasks)
    except tg.TinkerGymError as error:
        print(error.hint)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == [
        "pip install '.[parquet]' in a checkout of tinkergym",
        "pip install '.[huggingface]' in a checkout of tinkergym",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=4
)


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=8))
def test_any_json_rows_come_back_as_they_were_and_in_their_order(tmp_path_factory, tasks):
    folder = tmp_path_factory.mktemp("rows")
    text = io.StringIO()
    for task in tasks:
        text.write(json.dumps(task) + "\n")
    (folder / "rows.jsonl").write_text(text.getvalue())
    assert list(JsonlTasks(folder / "rows.jsonl")) == tasks == list(SequenceTasks(tasks))
    assert SequenceTasks(tasks).fingerprint == GeneratorTasks(lambda: tasks, len(tasks)).fingerprint
