import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import ParquetTasks


def test_takes_parquet_written_again_for_same_data_and_names_another(tmp_path):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([{"q": "a"}, {"q": "b"}]), path)
    tasks = ParquetTasks(path)
    assert tasks[0] == {"q": "a"}
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    assert tasks[1] == {"q": "b"}
    path.unlink()
    pq.write_table(pa.Table.from_pylist([{"q": "a"}, {"q": "c"}]), path)
    with pytest.raises(InvalidRequestError) as caught:
        tasks[1]
    assert (caught.value.field, caught.value.code) == ("path", "data_changed")
    assert ParquetTasks(path)[1] == {"q": "c"}


def test_refuses_other_rows_under_an_equal_footer(tmp_path):
    path = tmp_path / "train.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.Table.from_pylist([{"q": "a"}]), path, **plain)
    tasks = ParquetTasks(path)
    assert tasks[0] == {"q": "a"}
    path.unlink()
    pq.write_table(pa.Table.from_pylist([{"q": "b"}]), path, **plain)
    os.utime(path, (1e9, 1e9))
    with pytest.raises(InvalidRequestError) as caught:
        tasks[0]
    assert caught.value.code == "data_changed"
