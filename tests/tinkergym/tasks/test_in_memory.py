import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
def test_no_tasks_at_all_are_refused(empty, tmp_path):
    with pytest.raises(InvalidRequestError, match="has no tasks"):
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
    with pytest.raises(InvalidRequestError, match="does not exist"):
        ParquetTasks(tmp_path / "nothing.parquet")
    with pytest.raises(InvalidRequestError, match="which split"):
        HuggingFaceTasks("nobody/nothing")
