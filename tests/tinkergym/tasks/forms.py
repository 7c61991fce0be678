"""The same tasks in every form in which they can be kept."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from tinkergym.tasks import (
    GeneratorTasks,
    HuggingFaceTasks,
    JsonlTasks,
    ParquetTasks,
    SequenceTasks,
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
