import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import (
    HuggingFaceTasks,
    ParquetTasks,
    SequenceTasks,
)


@pytest.mark.parametrize(
    "empty",
    [
        lambda folder: SequenceTasks([]),
        lambda folder: (
            pq.write_table(pa.table({"a": []}), folder / "e.parquet") or ParquetTasks(folder / "e.parquet")
        ),
    ],
)
def test_rejects_empty_tasks(empty, tmp_path):
    with pytest.raises(InvalidRequestError) as caught:
        empty(tmp_path).choose(np.random.default_rng(0))
    assert caught.value.field == "path"


def test_rejects_what_is_no_task_with_its_number():
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "not_a_mapping"):
        SequenceTasks([{}, "text"])[1]
    with pytest.raises(InvalidRequestError, match="task 0 of the list of tasks has no fingerprint"):
        _ = SequenceTasks([{"a": object()}]).fingerprint


def test_rejects_uncopyable_value_with_the_number_of_its_task():
    closed = Image.new("RGB", (4, 4))
    closed.close()
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, format="PNG")
    cut_off = Image.open(io.BytesIO(file.getvalue()[:-500]))
    for image in (closed, cut_off):
        with pytest.raises(InvalidRequestError, match="task 1 of the list of tasks cannot be copied"):
            SequenceTasks([{}, {"image": image}])[1]


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_rejects_damaged_parquet_pages_with_the_row(tmp_path, compression):
    file = tmp_path / "damaged.parquet"
    rows = [{"question": "x" * 50 + str(number)} for number in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), file, compression=compression, use_dictionary=False)
    data = bytearray(file.read_bytes())
    middle = range(200, len(data) // 2)
    data[middle.start : middle.stop] = b"\xff" * len(middle)
    file.write_bytes(data)
    tasks = ParquetTasks(file)
    assert len(tasks) == 2000
    with pytest.raises(InvalidRequestError) as caught:
        list(tasks)
    assert caught.value.field == "path"


def test_rejects_broken_or_missing_file(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing else")
    with pytest.raises(InvalidRequestError) as caught:
        len(ParquetTasks(tmp_path / "broken.parquet"))
    assert caught.value.field == "path"
    with pytest.raises(InvalidRequestError) as caught:
        ParquetTasks(tmp_path / "nothing.parquet")
    assert caught.value.field == "path"
    with pytest.raises(InvalidRequestError) as caught:
        HuggingFaceTasks("nobody/nothing")
    assert caught.value.field == "split"
