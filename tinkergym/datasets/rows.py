"""Dataset rows with their location, from a JSON lines file or a task source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tinkergym.datasets.image_paths import with_images
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.jsonl import MOST_LINE_BYTES, json_fault, lines_of
from tinkergym.tasks.source import TaskSource

DataSource = str | PathLike[str] | TaskSource
"""A `.jsonl` file, or a task source."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, or why it cannot be read."""

    where: str
    """`line 7`, or `task 6`."""
    value: Any
    fault: str = ""


def source_name(source: DataSource) -> str:
    """Return the dataset's name for messages."""
    return source.name if isinstance(source, TaskSource) else Path(source).name


def rows(source: DataSource, *, field: str = "data") -> Iterator[Row]:
    """Yield the rows in order. Blank lines of a file are skipped, but counted.

    A line that is too long is the last.

    Args:
        source: The file or task source.
        field: The name of the setting, for errors.

    Raises:
        InvalidRequestError: There is no such file, or it is neither a file name nor a task source.
    """
    if isinstance(source, TaskSource):
        for index in range(len(source)):
            yield Row(f"task {index}", source[index])
        return
    if not isinstance(source, str | PathLike):
        raise InvalidRequestError(
            f"must be the name of a .jsonl file or a task source, not {type(source).__name__}",
            hint="wrap rows that are in memory: tg.tasks.SequenceTasks(rows)",
            field=field,
        )
    path = Path(source)
    if "\0" in str(path):
        raise InvalidRequestError(
            f"{str(path)!r} is not a file name: it contains a null character", field=field
        )
    try:
        with path.open("rb") as file:
            for number, line in enumerate(lines_of(file), start=1):
                if line.strip():
                    yield _with_its_images(_parsed(f"line {number}", line), path.parent)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
        raise InvalidRequestError(reason, hint="name a readable .jsonl file", field=field) from None


def no_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python reads as JSON."""
    raise ValueError(f"{name} is not a valid JSON number")


def _with_its_images(row: Row, folder: Path) -> Row:
    try:
        return row if row.fault else Row(row.where, with_images(row.value, folder))
    except ValueError as error:
        return Row(row.where, None, str(error))


def _parsed(where: str, line: bytes) -> Row:
    if len(line) > MOST_LINE_BYTES:
        return Row(where, None, f"the line is longer than {MOST_LINE_BYTES} bytes")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Row(where, None, f"the line is not valid UTF-8: {error.reason} at byte {error.start}")
    try:
        return Row(where, json.loads(text.rstrip("\r\n"), parse_constant=no_constant))
    except (ValueError, RecursionError) as error:
        return Row(where, None, f"the line is not valid JSON: {json_fault(error)}")
