"""Tasks from JSON lines."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from tinkergym.basics.user_json import json_fault, read_json
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.data_read_once import file_key, shared
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_empty, refuse_split

MOST_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Index:
    offsets: array[int]
    """Start of each task, in bytes."""
    fingerprint: str
    modified_ns: int
    size: int


class JsonlTasks(TaskSource):
    """The tasks of a JSON lines file, one object per line; blank lines are skipped.

    Nothing is read before the first use, and then only the position of each line, so large files are cheap.

    Example:
        >>> tasks = JsonlTasks(Path(__file__).parent / "data", split="train")
        >>> index, task = tasks.choose(self.np_random, options)
    """

    def __init__(self, path: str | PathLike[str], *, split: str | None = None) -> None:
        """Set the file.

        Args:
            path: A `.jsonl` file, or a folder of them, one per split.
            split: The split: `<split>.jsonl` in the folder.

        Raises:
            InvalidRequestError: There is no such file; the error lists the existing splits.
        """
        self._arguments = (os.fspath(path), split)
        root = Path(path)
        if root.is_dir():
            self.splits = tuple(sorted(file.stem for file in root.glob("*.jsonl") if file.is_file()))
            self.split = named_split(root.name, self.splits, split)
            root /= f"{split}.jsonl"
        elif root.is_file():
            refuse_split(root.name, split)
        else:
            raise InvalidRequestError(f"the task file {root} does not exist", field="path")
        self._path = root
        self._read_index: _Index | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def name(self) -> str:
        """The file's name."""
        return self._path.name

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file, in hex."""
        return self._index().fingerprint

    def __len__(self) -> int:
        return len(self._index().offsets)

    def read(self, index: int) -> Task:
        """Return the object on a line.

        Raises:
            InvalidRequestError: The line is not a JSON object, or the file changed since it was first read.
        """
        known = self._index()
        with self._path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if (stat.st_mtime_ns, stat.st_size) != (known.modified_ns, known.size):
                known = self._read_again(known)
            file.seek(known.offsets[index])
            line = file.readline(MOST_LINE_BYTES)
        try:
            task = read_json(line.rstrip(b"\r\n"))
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"task {index} of {self.name} is not valid JSON: {json_fault(error)}"
            ) from error
        if not isinstance(task, dict):
            raise InvalidRequestError(f"task {index} of {self.name} is not a JSON object")
        return task

    def _read_again(self, known: _Index) -> _Index:
        """Return the index of a file that was written again with the same bytes, as by an installation.

        Raises:
            InvalidRequestError: Its bytes are others.
        """
        self._read_index = None
        again = self._index()
        if again.fingerprint != known.fingerprint:
            self._read_index = known
            raise InvalidRequestError(
                f"{self._path} changed after its tasks were first read",
                hint="make the environment anew, as a new job does, or write new data to a new file",
                field="path",
                code="data_changed",
            )
        return again

    def _index(self) -> _Index:
        if self._read_index is None:
            try:
                self._read_index = shared(("jsonl", *file_key(self._path)), lambda: _scan(self._path))
            except OSError as error:
                raise InvalidRequestError(
                    f"the task file {self._path} cannot be read: {error.strerror or error}", field="path"
                ) from error
            refuse_empty(self, len(self._read_index.offsets))
        return self._read_index

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _again(path: str, split: str | None) -> JsonlTasks:
    return JsonlTasks(path, split=split)


def _scan(path: Path) -> _Index:
    offsets, position, digest = array("q"), 0, hashlib.sha256()
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        for number, line in enumerate(lines_of(file), start=1):
            if not offsets and line.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
                raise InvalidRequestError(
                    f"line {number} of {path.name} begins a JSON array",
                    hint="write one object per line, or pass the rows to SequenceTasks",
                    field="path",
                )
            if len(line) > MOST_LINE_BYTES:
                raise InvalidRequestError(
                    f"line {number} of {path.name} is longer than {MOST_LINE_BYTES} bytes",
                    hint="write each task on a line of its own",
                    field="path",
                )
            if line.strip():
                offsets.append(position)
            position += len(line)
            digest.update(line)
    return _Index(offsets, digest.hexdigest(), stat.st_mtime_ns, stat.st_size)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's lines. A line longer than `MOST_LINE_BYTES` is cut off and the last, to bound memory."""
    while line := file.readline(MOST_LINE_BYTES + 1):
        yield line
        if len(line) > MOST_LINE_BYTES:
            return
