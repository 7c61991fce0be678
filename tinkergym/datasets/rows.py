"""Dataset rows with their location, from whatever holds them; files are known by content, not by name."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from tinkergym.basics.extras import import_extra
from tinkergym.basics.user_json import json_fault, read_json
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.fingerprint import files_fingerprint
from tinkergym.tasks.hugging_face import HuggingFaceTasks
from tinkergym.tasks.jsonl import MOST_LINE_BYTES, JsonlTasks, lines_of
from tinkergym.tasks.parquet import SHARD, ParquetTasks
from tinkergym.tasks.sequence import SequenceTasks
from tinkergym.tasks.source import TaskSource

DataSource = str | PathLike[str] | TaskSource | Sequence[Mapping[str, Any]]
"""A file or folder, a task source, or a list of rows."""

MOST_ARRAY_BYTES = 1 << 30
"""The largest JSON array; it is read as a whole."""

_HEAD = 1 << 16
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstandard", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_COLUMNS = frozenset(
    [
        "messages",
        "prompt",
        "completion",
        "text",
        "chosen",
        "rejected",
        "conversations",
        "instruction",
        "output",
        "input",
        "label",
        "images",
        "image",
        "tools",
        "system",
    ]
)
"""Columns by which a CSV file is known."""
_OBJECTS = frozenset({"tools", "functions", "images", "template_variables", "chat_template_kwargs"})
"""Columns of a CSV file whose cells may be objects; others hold text, or lists of messages."""
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_BLANK = b" \t\r\n"
_KINDS = "JSON lines, a JSON array, Parquet, Arrow, or CSV that begins with names such as prompt,completion"


@dataclass(frozen=True, slots=True)
class Row:
    """One row, or why it cannot be read."""

    where: str
    """`line 7`, or `task 6`."""
    value: Any
    fault: str = ""
    layout: str = ""
    """The name of its layout, once it is known."""
    overlong: bool = False
    """Whether the fault is its length."""


Opened = tuple[str, Iterable[Row]]
"""What the container is called, and the rows."""


def source_name(source: DataSource) -> str:
    """Return the dataset's name for messages."""
    if isinstance(source, TaskSource):
        return source.name
    return Path(source).name if isinstance(source, str | PathLike) else f"the {type(source).__name__} of rows"


def opened(source: DataSource, *, field: str = "data") -> Opened:
    """Return what holds the data, in words, and its rows in order.

    Args:
        source: A file or folder, a task source, or a list of rows.
        field: The name of the setting, for errors.

    Raises:
        InvalidRequestError: There is no such file, or it is of no known kind.
    """
    if not isinstance(source, TaskSource | str | PathLike):
        source = _in_memory(source, field)
    if isinstance(source, TaskSource):
        return source.name, _of_tasks(source)
    path = Path(source)
    if "\0" in str(path):
        raise InvalidRequestError(
            f"{str(path)!r} is not a file name: it contains a null character", field=field
        )
    try:
        if path.is_dir():
            return _folder(path, field)
        if path.exists() and not path.is_file():
            raise InvalidRequestError(
                f"{path} is no regular file, and data are read several times",
                hint="save it to a file first",
                field=field,
            )
        return _file(path, field)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
        raise InvalidRequestError(reason, hint="name a readable file", field=field) from None


def content_sha256(source: DataSource) -> str:
    """Return a hash of the data: of a file's or folder's bytes, or of the rows.

    Raises:
        InvalidRequestError: It cannot be read, or a row has no stable JSON form.
    """
    if not isinstance(source, TaskSource | str | PathLike):
        source = _in_memory(source, "data")
    if isinstance(source, TaskSource):
        return source.fingerprint
    path = Path(source)
    try:
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        return files_fingerprint(files)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}", field="data") from None


def folder_of(source: DataSource) -> Path:
    """Return the folder for relative paths in the data: itself, that of its file, or the current one."""
    if isinstance(source, JsonlTasks):
        return source.path.parent
    if not isinstance(source, str | PathLike):
        return Path()
    path = Path(source)
    return path if path.is_dir() else path.parent


def _in_memory(rows: Any, field: str) -> TaskSource:
    if callable(getattr(rows, "to_dict", None)) and hasattr(rows, "columns"):
        rows = _of_pandas(rows, field)
    elif callable(getattr(rows, "to_dicts", None)):
        rows = rows.to_dicts()  # a DataFrame of polars
    whole = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
    if not whole or isinstance(rows, Mapping | bytes):
        raise InvalidRequestError(
            f"must be the name of a file, a list of rows or a task source, not {type(rows).__name__}",
            hint="pass a list of dicts, a file, or a source of tinkergym.tasks",
            field=field,
        )
    return SequenceTasks(rows)


def _of_pandas(frame: Any, field: str) -> Any:
    """Return the rows of a DataFrame; through Arrow, which has null for its many signs of missing values."""
    pa = import_extra(
        "pyarrow", "DataFrames need the package pyarrow", extra="parquet", error=InvalidRequestError
    )
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"the DataFrame cannot be read: {error}", hint="pass a list of dicts", field=field
        ) from error


def _of_tasks(source: TaskSource, word: str = "task") -> Iterator[Row]:
    for index in range(len(source)):
        yield Row(f"{word} {index}", source[index])


def _folder(path: Path, field: str) -> Opened:
    if (path / "state.json").is_file():
        return "a folder of datasets", _of_tasks(HuggingFaceTasks(path), "row")
    if (path / "dataset_dict.json").is_file():
        raise InvalidRequestError(
            f"{path} has several splits", hint=f"name the folder of one, as {path / 'train'}", field=field
        )
    files = sorted(file for file in path.iterdir() if file.suffix in (".jsonl", ".json", ".parquet", ".csv"))
    if not files and (path / "data").is_dir():  # As of a repository of the hub.
        return _folder(path / "data", field)
    shards = {SHARD.sub("", file.stem) for file in files if file.suffix == ".parquet"}
    if len(files) > 1 and len(shards) == 1 and all(file.suffix == ".parquet" for file in files):
        return "Parquet", _of_tasks(ParquetTasks(path, split=shards.pop()), "row")
    if len(files) != 1:
        raise InvalidRequestError(
            f"{path} is a folder with {len(files)} data files",
            hint="name one file, or pass ParquetTasks(folder, split=...) or JsonlTasks(folder, split=...)",
            field=field,
        )
    return _file(files[0], field)


def _file(path: Path, field: str) -> Opened:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PAR1"):
        return "Parquet", _of_tasks(ParquetTasks(path), "row")
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "Arrow", _of_arrow(path, field)
    for start, packed in _PACKED.items():
        if head.startswith(start):
            raise InvalidRequestError(f"{path} is a {packed} file", hint="unpack it first", field=field)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InvalidRequestError(f"{path} is UTF-16 or UTF-32", hint="save it as UTF-8", field=field)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip(_BLANK)
    if text.startswith(b"["):
        return "a JSON array", _of_array(path)
    if not text.startswith(b"{") and _is_csv(text):
        return "CSV", _of_csv(path)
    if fault := _not_lines(text):
        raise InvalidRequestError(f"{path} {fault}", hint=f"known are {_KINDS}", field=field)
    return "JSON lines", _of_lines(path, _parsed)


def _not_lines(text: bytes) -> str:
    """Return what a file is, by its beginning, if it can be no JSON lines."""
    first = text.split(b"\n", 1)[0].strip()
    if first.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the data: fetch it with `git lfs pull`"
    if b"\0" in text:
        return "is not a text file in UTF-8"
    if first and not first.startswith(b"{") and len(first) < _HEAD and not _is_json(first):
        return "is neither JSON nor CSV with a known column"
    if first == b"{":
        return "begins an object that takes several lines: write one object per line, or a JSON array of them"
    return ""


def _is_json(line: bytes) -> bool:
    try:
        read_json(line)
    except (ValueError, RecursionError):
        return False
    return True


def _of_lines(path: Path, parsed: Callable[[str, bytes], Row]) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(_whole_lines(file), start=1):
            if line.strip():
                yield parsed(f"line {number}", line)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield all lines; of one that is too long only the beginning, which is longer than is allowed."""
    while True:
        line = b""
        for line in lines_of(file):
            yield line
        if len(line) <= MOST_LINE_BYTES:
            return
        while line and not line.endswith(b"\n"):
            line = file.readline(_HEAD)


def _parsed(where: str, line: bytes) -> Row:
    if len(line) > MOST_LINE_BYTES:
        return Row(where, None, f"the line is longer than {MOST_LINE_BYTES} bytes", overlong=True)
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Row(where, None, f"the line is not valid UTF-8: {error.reason} at byte {error.start}")
    try:
        return Row(where, read_json(text.rstrip("\r\n")))
    except (ValueError, RecursionError) as error:
        return Row(where, None, f"the line is not valid JSON: {json_fault(error)}")


def _of_array(path: Path) -> Iterator[Row]:
    if path.stat().st_size > MOST_ARRAY_BYTES:
        most = MOST_ARRAY_BYTES >> 20
        yield Row(
            "row 1", None, f"a JSON array of more than {most} MiB; write one object per line", overlong=True
        )
        return
    text = ""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        found = read_json(text)
    except UnicodeDecodeError as error:
        yield Row("the JSON array", None, f"it is not valid UTF-8: {error.reason} at byte {error.start}")
    except json.JSONDecodeError as error:
        yield Row(f"line {error.lineno}", None, f"the JSON array is not valid JSON: {json_fault(error)}")
    except (ValueError, RecursionError) as error:
        yield Row(_refused_row(text), None, f"it is not valid JSON: {error}")
    else:
        for number, value in enumerate(found, start=1):
            yield Row(f"row {number}", value)


def _refused_row(text: str) -> str:
    """Return the first row of a JSON array that is refused though its syntax is right until there."""
    decoder, at, number = json.JSONDecoder(), text.index("[") + 1, 0
    while True:
        number += 1
        at += len(text[at : at + _HEAD]) - len(text[at : at + _HEAD].lstrip(" \t\r\n,"))
        try:
            _, end = decoder.raw_decode(text, at)
            read_json(text[at:end])
        except (ValueError, RecursionError):
            return f"row {number}"
        at = end


def _of_arrow(path: Path, field: str) -> Iterator[Row]:
    pa = import_extra(
        "pyarrow", "Arrow files need the package pyarrow", extra="parquet", error=InvalidRequestError
    )
    number = 0
    try:
        with pa.memory_map(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            batches: Any = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
            count = batches.num_record_batches if is_file else None
            for batch in map(batches.get_batch, range(count)) if count is not None else batches:
                for value in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", value)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read after row {number}: {error}", field=field
        ) from error


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _is_csv(head: bytes) -> bool:
    line = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    return bool({cell.strip().strip('"') for cell in line.split(_delimiter(line))} & _COLUMNS)


def _of_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MOST_LINE_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
        except UnicodeDecodeError as error:  # It decodes more than the line.
            yield Row("line 1", None, f"it is not valid UTF-8: {error.reason}")
            return
        table = csv.DictReader(io.StringIO(first), delimiter=_delimiter(first))
        names: Sequence[str] = [name.strip() for name in table.fieldnames or ()]
        cells = csv.reader(file, delimiter=_delimiter(first), strict=True)
        while True:
            start = cells.line_num + 2
            try:
                row = next(cells)
            except StopIteration:
                return
            except UnicodeDecodeError as error:
                yield Row(f"line {start}", None, f"it is not valid UTF-8: {error.reason}")
                return
            except csv.Error as error:
                yield Row(f"line {start}", None, f"it is not valid CSV: {error}")
                return
            if not row:
                continue
            if len(row) != len(names):
                yield Row(f"line {start}", None, f"has {len(row)} cells, but there are {len(names)} columns")
                continue
            yield Row(
                f"line {start}", {name: _cell(name, text) for name, text in zip(names, row, strict=True)}
            )


def _cell(column: str, text: str) -> Any:
    """Return a cell's text, the messages, tools or images in it as JSON, or a label; None if it is empty."""
    if text.startswith(("[", "{")):
        try:
            found = read_json(text)
        except (ValueError, RecursionError):
            return text
        some = found if isinstance(found, list) else [found]
        if column in _OBJECTS:
            return found if some and all(isinstance(one, dict) for one in some) else text
        return found if isinstance(found, list) and found and all(map(_is_message, found)) else text
    if column in ("label", "kto_tag") and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    return text or None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.keys() & {"role", "from", "function"})
