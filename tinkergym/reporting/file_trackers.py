"""Trackers that write a file: one line per train step, as JSON or as CSV.

The file itself shows which steps it has. A partial line left by a killed process is removed.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import IO

from tinkergym.reporting.notes import Note
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView

RUNS = Path("runs")
"""Default folder: `runs/<job id>/`, in the working directory."""


class JsonlTracker:
    """Writes `metrics.jsonl`: one object per step, with `step`, `time` and the values by name.

    And `notes.jsonl`: one object per note, with `seq`, `step`, `time`, `kind`, `text`, and the numbers of an
    evaluation or the row of a completion.
    """

    def __init__(self, folder: str | Path = RUNS) -> None:
        """Set the target folder, `folder/<job id>/`."""
        self._folder = Path(folder)
        self._file: IO[str] | None = None
        self._notes: IO[str] | None = None
        self._last_note = 0

    def begin(self, job: JobView) -> int:
        """Open the file; return the last step in it."""
        path = _prepared(self._folder, job.job_id, "metrics.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._file = path.open("a", encoding="utf-8")
        notes = _prepared(self._folder, job.job_id, "notes.jsonl")
        told = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
        self._last_note = max((int(json.loads(line)["seq"]) for line in told), default=0)
        self._notes = notes.open("a", encoding="utf-8")
        return max((int(json.loads(line)["step"]) for line in lines), default=0)

    def report(self, point: Point) -> None:
        """Append a line."""
        assert self._file is not None
        self._file.write(json.dumps({"step": point.step, "time": point.time, **point.values}) + "\n")
        self._file.flush()

    def last_note(self) -> int:
        """Return the number of the last note in the file."""
        return self._last_note

    def tell(self, note: Note) -> None:
        """Append a line."""
        assert self._notes is not None
        line = {"seq": note.seq, "step": note.step, "time": note.time, "kind": note.kind, "text": note.text}
        more = {name: found for name, found in (("values", note.values), ("row", note.row)) if found}
        self._notes.write(json.dumps(line | more) + "\n")
        self._notes.flush()

    def end(self, state: JobState | None) -> None:
        """Close the files."""
        for file in (self._file, self._notes):
            if file is not None:
                file.close()


class CsvTracker:
    """Writes `metrics.csv`: one row per step; a new value adds a column."""

    def __init__(self, folder: str | Path = RUNS) -> None:
        """Set the target `folder/<job id>/metrics.csv`."""
        self._folder = Path(folder)
        self._path: Path | None = None
        self._columns: list[str] = []

    def begin(self, job: JobView) -> int:
        """Read the file's columns; return the last step in it."""
        self._path = _prepared(self._folder, job.job_id, "metrics.csv")
        rows = self._rows()
        self._columns = list(rows[0]) if rows else ["step", "time"]
        return max((int(row["step"]) for row in rows), default=0)

    def report(self, point: Point) -> None:
        """Append a row, and rewrite the file if there are new columns."""
        assert self._path is not None
        row = {"step": str(point.step), "time": repr(point.time)}
        row |= {name: repr(value) for name, value in point.values.items()}
        added = [name for name in row if name not in self._columns]
        if added or not self._path.exists():
            rows = self._rows()
            self._columns += added
            new = self._path.with_suffix(".new")
            new.write_text(self._text([dict(zip(self._columns, self._columns, strict=True)), *rows, row]))
            new.replace(self._path)
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text([row]))

    def end(self, state: JobState | None) -> None:
        """Do nothing: every row is on disk."""

    def _rows(self) -> list[dict[str, str]]:
        assert self._path is not None
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _text(self, rows: list[dict[str, str]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        return text.getvalue()


def _prepared(folder: Path, job_id: str, name: str) -> Path:
    """Return the path of a job's file after removing a partial line."""
    path = folder / job_id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)
    return path
