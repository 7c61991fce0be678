"""Tasks: what a data-dependent environment asks, read from JSON lines."""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np

from tinkergym.errors import InvalidRequestError

Task = dict[str, Any]


class JsonlTasks(Sequence[Task]):
    """The tasks of a JSON lines file, one object per line; blank lines do not count.

    Nothing is read before the first use, and then only where each line begins, so a large file costs little.

    Example:
        >>> tasks = JsonlTasks(Path(__file__).parent / "data", split="train")
        >>> index, task = tasks.choose(self.np_random, options)
    """

    def __init__(self, path: str | PathLike[str], *, split: str | None = None) -> None:
        """Name the tasks.

        Args:
            path: A `.jsonl` file, or a folder of them, one per split.
            split: The split: `<split>.jsonl` in the folder.

        Raises:
            InvalidRequestError: There is no such file; the error lists the splits that are there.
        """
        root = Path(path)
        if root.is_dir():
            splits = sorted(file.stem for file in root.glob("*.jsonl"))
            if split not in splits:
                raise InvalidRequestError(
                    f"{root.name} has no split {split!r}", hint=f"choose from {splits}", field="split"
                )
            root /= f"{split}.jsonl"
        elif not root.is_file():
            raise InvalidRequestError(f"there is no task file {root}", field="path")
        self._path = root
        self._offsets: array[int] | None = None
        self._fingerprint = ""
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file, in hex: equal data, equal fingerprint."""
        self._index()
        return self._fingerprint

    def __len__(self) -> int:
        return len(self._index())

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        offsets = self._index()
        with self._path.open("rb") as file:
            file.seek(offsets[index])
            line = file.readline()
        try:
            task = json.loads(line, parse_constant=_no_constant)
        except ValueError as error:
            raise InvalidRequestError(f"task {index} of {self._path.name} is no JSON: {error}") from error
        if not isinstance(task, dict):
            raise InvalidRequestError(f"task {index} of {self._path.name} is no JSON object")
        return task

    def choose(
        self, np_random: np.random.Generator, options: Mapping[str, Any] | None = None
    ) -> tuple[int, Task]:
        """Return a task and its index: what `options["task_index"]` names, else a random one.

        Raises:
            InvalidRequestError: There is no task of that number.
        """
        index = (options or {}).get("task_index")
        if index is None:
            index = int(np_random.integers(len(self)))
        if not isinstance(index, int | np.integer) or not 0 <= index < len(self):
            raise InvalidRequestError(
                f"{self._path.name} has no task {index!r}", hint=f"0 to {len(self) - 1}", field="task_index"
            )
        return int(index), self[int(index)]

    def _index(self) -> array[int]:
        with self._lock:
            if self._offsets is None:
                offsets, position, digest = array("q"), 0, hashlib.sha256()
                with self._path.open("rb") as file:
                    for line in file:
                        if line.strip():
                            offsets.append(position)
                        position += len(line)
                        digest.update(line)
                if not offsets:
                    raise InvalidRequestError(f"{self._path.name} holds no tasks", field="path")
                self._offsets, self._fingerprint = offsets, digest.hexdigest()
            return self._offsets

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_path"])  # type: ignore[misc]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
