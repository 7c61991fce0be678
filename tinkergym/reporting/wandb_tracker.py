"""Weights & Biases: one run per job, online or offline as set in WANDB_MODE."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tinkergym.reporting.callbacks import package
from tinkergym.reporting.notes import RowTracker, WaitingNotes
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView

_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbTracker(RowTracker):
    """Reports to a run whose id is the job's."""

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
