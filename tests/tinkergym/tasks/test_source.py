"""What every form of tasks promises, asked of each with the same rows."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from tests.tinkergym.tasks.forms import ROWS, hugging_face, parquet
from tinkergym.errors import InvalidRequestError


def test_lists_splits_and_rejects_unknown_one_with_them(make):
    assert set(make("test").splits) == {"train", "test"}
    assert make("test").split == "test"
    for unknown in ("dev", "../train", None):
        with pytest.raises(InvalidRequestError) as refused:
            make(unknown)
        assert refused.value.field == "split"


def test_names_task_by_option_or_draws_it_by_seed(make):
    tasks = make("train")
    assert tasks.choose(np.random.default_rng(0), {"task_index": np.int64(7)}) == (7, ROWS[7])
    drawn = [tasks.choose(np.random.default_rng(seed)) for seed in range(20)]
    assert drawn == [make("train").choose(np.random.default_rng(seed), {}) for seed in range(20)]
    assert all(task == ROWS[index] for index, task in drawn)
    for wrong in (-1, 10, "1", 1.0, True):
        with pytest.raises(InvalidRequestError) as caught:
            tasks.choose(np.random.default_rng(0), {"task_index": wrong})
        assert caught.value.field == "task_index"


def test_draws_nothing_from_environments_chance_for_named_task(make):
    used, fresh = np.random.default_rng(0), np.random.default_rng(0)
    make("train").choose(used, {"task_index": 3})
    assert used.integers(10**9) == fresh.integers(10**9)


def test_reads_for_itself_as_pickled_source(make):
    tasks = make("train")
    len(tasks)
    copy = pickle.loads(pickle.dumps(tasks))
    assert (list(copy), copy.split, copy.splits) == (ROWS, "train", tasks.splits)


def test_isolates_what_an_environment_does_to_its_task(make):
    make("train")[3]["answer"] = "spoilt"
    assert make("train")[3] == ROWS[3]


def test_names_the_extra_when_it_is_missing(tmp_path):
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
