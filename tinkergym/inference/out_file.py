"""Results in a file of JSON lines that any kill leaves continuable: one line per completion, in order.

The settings of the run are in `FILE.run.json` next to it. Because the lines are in the order of the units,
their number says what is done. Parquet is made from the lines when the last one is written; until then they
are in `FILE.part.jsonl`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from tinkergym.basics.written_files import lock_file, writing_to
from tinkergym.errors import ConflictError, InvalidRequestError, StorageFullError
from tinkergym.inference.parquet_file import write_parquet

_FINISHED = "finished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutFile:
    """Appends results. Use it as a context manager."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, n: int, resume: bool) -> None:
        """Open the file, or continue it.

        Args:
            path: Where the results go; `.parquet` makes a Parquet file of them.
            settings: What determines the results, as JSON.
            n: Lines per row.
            resume: Whether an existing file is continued; else it is refused.

        Raises:
            InvalidRequestError: The file exists, or cannot be written, or is not a file of results.
            ConflictError: It has results of other settings, or another process is writing to it.
        """
        if not path.name:
            raise InvalidRequestError(f"{path} is no name of a file", hint="name one", field="out")
        self.path, self._n = path, n
        self._parquet = path.suffix == ".parquet"
        self._lines = path.with_name(f"{path.name}.part.jsonl") if self._parquet else path
        self._about = _about(path)
        self._settings = json.loads(json.dumps(dict(settings)))
        self._file: IO[bytes] | None = None
        self.done = 0
        """Lines that are written."""
        self.errors = self.prompt_tokens = self.completion_tokens = 0
        there = [file for file in (path, self._lines) if file.exists()]
        if there and not resume:
            raise InvalidRequestError(
                f"{there[0]} exists",
                hint="continue it with resume (--resume), or name another file",
                field="out",
            )
        with writing_to(path, "out"):
            self._lines.parent.mkdir(parents=True, exist_ok=True)
            known = self._known(there) if there else None
            self.finished = known is not None and self._is_whole(known)
            if known is not None and self.finished:
                self._take_totals(known)
            else:
                self._open(known)

    @staticmethod
    def begun_with(path: Path) -> dict[str, Any]:
        """Return the settings of the run that began a file; empty if they cannot be read."""
        try:
            return dict(json.loads(_about(path).read_bytes())["settings"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _is_whole(self, known: Mapping[str, Any]) -> bool:
        """Whether the run was finished, and its file is as it was then."""
        if not known.get(_FINISHED):
            return False
        return self.path.exists() and (self._parquet or self.path.stat().st_size == known["bytes"])

    def _open(self, known: Mapping[str, Any] | None) -> None:
        # Unbuffered, so that what `write` returned from survives a killed process. It is synced at the end
        # only: lines that are lost with the power are sampled again.
        self._file = self._lines.open("r+b" if self._lines.exists() else "x+b", buffering=0)
        lock_file(self._file, self._lines)
        if known is None:
            self._write_about({})
        self._continue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines. Once this returns, they survive a killed process.

        Raises:
            StorageFullError: The disk is full; the lines before these are kept.
        """
        assert self._file is not None
        lines = list(lines)
        with self._room():
            _write_all(self._file, b"".join(_line(line) for line in lines))
        for line in lines:
            self._count(line)

    def finish(self) -> None:
        """All lines are written: note that, and make the Parquet file.

        Raises:
            StorageFullError: The disk is full; the lines are kept.
        """
        if self._file is None:
            return
        with self._room():
            os.fsync(self._file.fileno())
            if self._parquet:
                write_parquet(self._lines, self.path)
            totals = ("done", "errors", "prompt_tokens", "completion_tokens")
            size = self.path.stat().st_size
            self._write_about(
                {_FINISHED: True, "bytes": size, **{name: getattr(self, name) for name in totals}}
            )
        # Last: until the end is noted, `resume` continues from these lines.
        if self._parquet:
            self._lines.unlink()
        self.finished = True

    def _known(self, there: list[Path]) -> dict[str, Any] | None:
        """Return what is known of the run that is continued; None if there is none.

        Raises:
            InvalidRequestError: The file was not written by such a run.
            ConflictError: It has other settings.
        """
        try:
            known = json.loads(self._about.read_bytes())
            before = known["settings"]
        except FileNotFoundError:
            if any(file.stat().st_size for file in there):
                raise InvalidRequestError(
                    f"{there[0]} cannot be continued: {self._about.name} is missing",
                    hint="name another file",
                    field="out",
                ) from None
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"{self._about} does not describe a run: {error}", hint="name another file", field="out"
            ) from None
        changed = [key for key in {**before, **self._settings} if before.get(key) != self._settings.get(key)]
        if changed:
            what = "; ".join(
                f"{key} was {_short(before.get(key))}, not {_short(self._settings.get(key))}"
                for key in changed
            )
            raise ConflictError(
                f"{self.path} has results of other settings: {what}",
                hint="repeat those settings to continue it, or name another file",
                field="out",
            )
        return dict(known)

    def _continue(self) -> None:
        """Count the whole lines, and cut off what follows them.

        Raises:
            InvalidRequestError: A line in between is not the one that belongs there.
        """
        assert self._file is not None
        whole = 0
        with self._lines.open("rb") as file:
            while raw := file.readline():
                line = self._expected(raw)
                if line is None and file.read(1):
                    raise InvalidRequestError(
                        f"line {self.done + 1} of {self._lines} is not the one that the run wrote there",
                        hint="name another file",
                        field="out",
                    )
                if line is None:
                    break
                self._count(line)
                whole += len(raw)
        self._file.truncate(whole)
        self._file.seek(whole)

    def _expected(self, raw: bytes) -> dict[str, Any] | None:
        """Return a line if it is whole and the next one."""
        if not raw.endswith(b"\n"):
            return None
        try:
            line = json.loads(raw)
            place = line["row"], line["sample"]
        except (ValueError, KeyError, TypeError):
            return None
        return line if place == divmod(self.done, self._n) else None

    def _count(self, line: Mapping[str, Any]) -> None:
        self.done += 1
        self.errors += line.get("error") is not None
        self.prompt_tokens += line["prompt_tokens"]
        self.completion_tokens += line["completion_tokens"]

    def _take_totals(self, known: Mapping[str, Any]) -> None:
        self.done, self.errors = known["done"], known["errors"]
        self.prompt_tokens, self.completion_tokens = known["prompt_tokens"], known["completion_tokens"]

    def _write_about(self, more: Mapping[str, Any]) -> None:
        part = self._about.with_name(f".{self._about.name}.part")
        part.write_text(json.dumps({"settings": self._settings, **more}, indent=1, ensure_ascii=False) + "\n")
        part.replace(self._about)

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise InvalidRequestError(
                    f"{self.path} cannot be written: {error.strerror or error}", field="out"
                ) from error
            raise StorageFullError(
                f"the disk is full: {self.done} results are kept in {self._lines}",
                hint="free some space and continue with resume (--resume)",
                field="out",
            ) from error


def _about(path: Path) -> Path:
    return path.with_name(f"{path.name}.run.json")


def _line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
