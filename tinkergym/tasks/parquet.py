"""Tasks from Parquet files. Needs the extra `parquet`, imported at first use."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.data_read_once import file_key, shared
from tinkergym.tasks.fingerprint import files_fingerprint
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_empty, refuse_split

SHARD = re.compile(r"-\d+-of-\d+$")
"""The end of the name of one of several files of a split."""
_DECODED_GROUPS = 4
"""The number of decoded row groups that are kept; the episodes of a group use the same task."""


class ParquetTasks(TaskSource):
    """The rows of Parquet files.

    Nothing is read before the first use; then all bytes for the fingerprint, which the machine keeps of large
    files, and of the rows only the groups that are needed.

    Example:
        >>> tasks = ParquetTasks(Path(__file__).parent / "data", split="train")
    """

    def __init__(self, path: str | PathLike[str], *, split: str | None = None) -> None:
        """Set the files.

        Args:
            path: A `.parquet` file, or a folder with one per split, or several per split that are named
                `<split>-00000-of-00002.parquet`.
            split: The split, in a folder.

        Raises:
            InvalidRequestError: There is no such file; the error lists the existing splits.
        """
        self._arguments = (os.fspath(path), split)
        root = Path(path)
        if root.is_dir():
            by_split: dict[str, list[Path]] = {}
            for file in sorted(root.glob("*.parquet")):
                by_split.setdefault(SHARD.sub("", file.stem), []).append(file)
            self.splits = tuple(sorted(by_split))
            self.split = named_split(root.name, self.splits, split)
            self._files = tuple(by_split[self.split])
        elif root.is_file():
            refuse_split(root.name, split)
            self._files = (root,)
        else:
            raise InvalidRequestError(f"the task file {root} does not exist", field="path")
        self._name = root.name if self.split is None else f"{root.name}/{self.split}"
        self._opened: _Rows | None = None
        self._keys: tuple[object, ...] = ()
        self._sha256 = ""

    @property
    def name(self) -> str:
        """The file's name, or the folder's and the split."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files, in hex; reads them completely."""
        key = ("parquet bytes", *map(file_key, self._files))
        return shared(key, lambda: files_fingerprint(self._files))

    def __len__(self) -> int:
        return self._rows().count

    def read(self, index: int) -> Task:
        """Return a row as a dict of Python values."""
        return self._rows().row(index)

    def _rows(self) -> _Rows:
        try:
            keys: tuple[object, ...] = tuple(map(file_key, self._files))
        except OSError:
            if self._opened is None:
                raise
            return self._opened  # What is mapped stays readable without its name.
        if self._opened is None or keys != self._keys:
            opened = shared(("parquet", *keys), lambda: _Rows(self._files))
            sha256 = self.fingerprint
            if self._opened is not None and sha256 != self._sha256:
                raise InvalidRequestError(
                    f"{self._files[0]} changed after its tasks were first read",
                    hint="make the environment anew, as a new job does, or write new data to a new file",
                    field="path",
                    code="data_changed",
                )
            self._opened, self._keys, self._sha256 = opened, keys, sha256
            refuse_empty(self, self._opened.count)
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


class _Rows:
    """The rows of several files, numbered consecutively."""

    def __init__(self, files: Sequence[Path]) -> None:
        pa, pq = (
            import_extra(
                module,
                "Parquet files need the package pyarrow",
                extra="parquet",
                error=InvalidRequestError,
            )
            for module in ("pyarrow", "pyarrow.parquet")
        )
        try:
            # Mapped, so that processes on one machine share the pages.
            opened = [(path, pq.ParquetFile(path, memory_map=True)) for path in files]
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidRequestError(f"{files[0]} cannot be read: {error}", field="path") from error
        self._groups = [(path, file, i) for path, file in opened for i in range(file.num_row_groups)]
        sizes = (file.metadata.row_group(i).num_rows for _, file, i in self._groups)
        self._damaged = (pa.ArrowException, OSError, ValueError, OverflowError)
        self._starts: list[int] = [0, *accumulate(sizes)]
        self._decoded: BoundedDict[int, Any] = BoundedDict(_DECODED_GROUPS)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Task:
        group = bisect_right(self._starts, index) - 1
        path, file, number = self._groups[group]
        try:
            with self._lock:
                if group not in self._decoded:
                    self._decoded[group] = file.read_row_group(number)
                table = self._decoded[group]
            task: Task = table.slice(index - self._starts[group], 1).to_pylist()[0]
        except self._damaged as error:
            raise InvalidRequestError(
                f"row {index} of {path} cannot be read: {error}",
                hint="the file is damaged; write or download it again",
                field="path",
            ) from error
        return task


def _again(path: str, split: str | None) -> ParquetTasks:
    return ParquetTasks(path, split=split)
