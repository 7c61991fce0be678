"""Trackers whose run takes each step's row once: Weights & Biases and Trackio, with one run per job."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tinkergym.reporting.callbacks import package
from tinkergym.reporting.notes import Note, WaitingNotes
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView

_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_FULL, _FIRST, _LAST = 1, 2, 4


class RowTracker:
    """A tracker whose run takes each step's row once, so that notes wait for the next point."""

    LOGGED: ClassVar[Mapping[str, Any]] = {}
    """Further arguments with which rows are logged."""

    def __init__(self, library: Any, project: str, settings: dict[str, Any]) -> None:
        """Report to a run of `library`, which subclasses open with these settings."""
        self._project, self._settings = project, settings
        self._run: Any = None
        self._waiting = WaitingNotes(lambda columns, rows: library.Table(columns=list(columns), data=rows))
        self._last_step = self._last_note = 0

    def report(self, point: Point) -> None:
        """Pass the values, and the notes before them, to the library, which sends them in the background."""
        self._last_step = point.step
        self._run.log({**point.values, **self._waiting.taken()}, step=point.step, **self.LOGGED)

    def last_note(self) -> int:
        """Return the number of the last note in the run."""
        return self._last_note

    def tell(self, note: Note) -> None:
        """Keep a note for the next point."""
        self._waiting.add(note)

    def end(self, state: JobState | None) -> None:
        """Wait until everything is written. A run that continues can be resumed.

        Notes after the last point get their own row once the job has ended. Before that, the next process
        that reports the job sends them.
        """
        if state is not None and (left := self._waiting.taken()):
            self._run.log(left, step=self._last_step + 1, **self.LOGGED)
        self._finish(state)

    def _finish(self, state: JobState | None) -> None:
        self._run.finish()


class WandbTracker(RowTracker):
    """Reports to a run of Weights & Biases whose id is the job's, online or offline as set in WANDB_MODE."""

    LOGGED: ClassVar[Mapping[str, Any]] = {"commit": True}

    def __init__(self, project: str = "tinkergym", **settings: Any) -> None:
        """Set the project.

        Args:
            project: Created if it is missing.
            **settings: Further arguments of `wandb.init`: entity, group, tags, mode, dir, ...

        Raises:
            MissingExtraError: wandb is not installed.
        """
        self._wandb = package("wandb")
        super().__init__(self._wandb, project, settings)

    def begin(self, job: JobView) -> int:
        """Create or continue the job's run; return its last step.

        Online the server has it; offline the files of earlier processes have it.
        """
        folder = Path(self._settings.get("dir") or os.environ.get("WANDB_DIR") or ".") / "wandb"
        # Files of earlier processes; `init` creates this one's.
        offline = sorted(folder.glob(f"offline-run-*-{job.job_id}/run-{job.job_id}.wandb"))
        spec = job.spec.model_dump(mode="json")
        settings = {"resume": "allow", "name": job.spec.name or job.job_id, "config": spec} | self._settings
        self._run = self._wandb.init(project=self._project, id=job.job_id, **settings)
        if self._run.offline:
            rows = [row for path in offline for row in _rows_in(path)]
            self._last_step = max((step for step, _ in rows), default=0)
            self._last_note = max((seq for _, seq in rows), default=0)
        elif self._run.resumed:
            # wandb counts the next step.
            self._last_step = int(self._run.step) - 1
            self._last_note = int(self._run.summary.get(WaitingNotes.SEQ, 0))
        return self._last_step

    def _finish(self, state: JobState | None) -> None:
        self._run.finish(exit_code=1 if state is JobState.FAILED else 0)


class TrackioTracker(RowTracker):
    """Reports to Trackio, in its local database or in a Hugging Face Space.

    View the runs with `trackio show --project tinkergym`.
    """

    def __init__(self, project: str = "tinkergym", **settings: Any) -> None:
        """Set the project.

        Args:
            project: Created if it is missing.
            **settings: Further arguments of `trackio.init`.

        Raises:
            MissingExtraError: trackio is not installed.
        """
        self._trackio = package("trackio")
        self._storage = package("trackio.sqlite_storage").SQLiteStorage
        super().__init__(self._trackio, project, settings)

    def begin(self, job: JobView) -> int:
        """Create or continue the job's run; return its last step."""
        # Before `init`, which may start writing. Steps are stored in order.
        last = self._storage.get_max_step_for_run(self._project, job.job_id)
        rows = self._storage.get_logs(self._project, job.job_id) if last else []
        self._last_note = max((int(row.get(WaitingNotes.SEQ) or 0) for row in rows), default=0)
        self._last_step = last or 0
        config = {"model": job.spec.model, "kind": job.spec.kind, "name": job.spec.name}
        settings = {"embed": False, "resume": "allow", "config": config} | self._settings
        self._run = self._trackio.init(project=self._project, name=job.job_id, **settings)
        return last or 0


def _rows_in(path: Path) -> list[tuple[int, int]]:
    """Return (step, number of the last note) of the rows in one of wandb's files, as far as it has any."""
    record_type = package("wandb.proto.wandb_internal_pb2").Record
    rows = []
    for content in _records(path.read_bytes()):
        record = record_type()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            seqs = [
                int(item.value_json)
                for item in record.history.item
                if WaitingNotes.SEQ in (item.key, "/".join(item.nested_key))
            ]
            rows.append((int(record.history.step.num), max(seqs, default=0)))
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after wandb's header.

    Source:
        https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    place, begun = _HEADER_BYTES, b""
    while place + _HEADER_BYTES <= len(content):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _HEADER_BYTES:  # Padded with zeros.
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        place += _HEADER_BYTES
        part = content[place : place + length]
        if len(part) < length or not kind:  # Truncated by a kill.
            return
        place += length
        begun = part if kind in {_FULL, _FIRST} else begun + part
        if kind in {_FULL, _LAST}:
            yield begun
