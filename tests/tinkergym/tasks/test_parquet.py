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
