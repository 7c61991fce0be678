import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tinkergym as tg
from tests.tinkergym.tasks.forms import ROWS, jsonl, parquet
from tinkergym.tasks import ParquetTasks


def test_reads_same_in_threads(make):
    tasks, read = make("train"), []
    threads = [threading.Thread(target=lambda: read.append(list(tasks))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [ROWS] * 8


@pytest.mark.parametrize("form", [jsonl, parquet], ids=lambda form: form.__name__)
def test_reads_nothing_at_construction_and_once_for_two(form, tmp_path, monkeypatch):
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


def test_reads_one_row_without_the_whole_large_file(tmp_path):
    table = pa.table({"n": range(200_000), "text": [f"row {i}" for i in range(200_000)]})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=1000)
    assert ParquetTasks(tmp_path / "large.parquet")[150_500] == {"n": 150_500, "text": "row 150500"}
