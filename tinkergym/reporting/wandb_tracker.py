"""Weights & Biases: one run per job, online or offline as set in WANDB_MODE."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkergym.reporting.packages import package
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs import JobView

_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbTracker:
    """Reports to a run whose id is the job's."""

    def __init__(self, project: str = "tinkergym", **settings: Any) -> None:
        """Set the project.

        Args:
            project: Created if it is missing.
            **settings: Further arguments of `wandb.init`: entity, group, tags, mode, dir, ...

        Raises:
            MissingExtraError: wandb is not installed.
        """
        self._wandb = package("wandb")
        self._project, self._settings = project, settings
        self._run: Any = None

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
            return max((step for path in offline for step in _steps_in(path)), default=0)
        # wandb counts the next step.
        return int(self._run.step) - 1 if self._run.resumed else 0

    def report(self, point: Point) -> None:
        """Pass the values to wandb, which sends or writes them in the background."""
        self._run.log(point.values, step=point.step, commit=True)

    def end(self, state: JobState | None) -> None:
        """Wait until everything is sent. A run that continues can be resumed."""
        self._run.finish(exit_code=1 if state is JobState.FAILED else 0)


def _steps_in(path: Path) -> list[int]:
    """Return the steps in one of wandb's files, as far as it was written."""
    record_type = package("wandb.proto.wandb_internal_pb2").Record
    steps = []
    for content in _records(path.read_bytes()):
        record = record_type()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            steps.append(int(record.history.step.num))
    return steps


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
