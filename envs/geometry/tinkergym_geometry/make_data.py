"""Writes the drawn problems as Parquet files in the layout of geometry3k.

`python -m tinkergym_geometry.make_data FOLDER`; needs pyarrow. The folder can then be named as `data=`
below the folder that `TINKERGYM_DATA` names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tinkergym_geometry.drawn import SIZES, drawn_tasks


def make(folder: Path) -> None:
    """Write `train.parquet` and `test.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("images", pa.list_(image)), ("problem", pa.string()), ("answer", pa.string())])
    folder.mkdir(parents=True, exist_ok=True)
    for split in SIZES:
        pq.write_table(pa.Table.from_pylist(drawn_tasks(split)[:], schema), folder / f"{split}.parquet")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
