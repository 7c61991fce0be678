"""Files of a job's steps, such as results of inference: one per step and epoch of the lease that wrote it.

The file of the highest epoch counts. A worker that lost the job writes under its own epoch, and so changes
nothing once its successor has written the step.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from backend.store.blobs import BlobMissingError, Blobs

_FOLDER = re.compile(r"step-(\d{6,})")
_RESULTS = "results"
_EPOCH = re.compile(r"e(\d+)")


@dataclass(frozen=True, slots=True)
class StepFiles:
    """Files `step-000012/e3.zlib`; those of earlier versions are `step-000012.zlib`."""

    files: Blobs
    suffix: str
    """The name's end: `.zlib`."""

    @property
    def steps(self) -> list[int]:
        """The stored steps, in order."""
        return sorted({step for step, _, _ in self._found("")})

    def write(self, step: int, content: bytes, *, epoch: int) -> None:
        """Store a step's file under a lease's epoch.

        Raises:
            StorageFullError: The disk is full.
        """
        self.files.put(f"{_name(step)}/e{epoch}{self.suffix}", content)

    def read(self, step: int) -> bytes | None:
        """Return a step's file; None if the step is not stored."""
        found = self._found(_name(step))
        try:
            return self.files.get(max(found)[2] if found else f"{_name(step)}{self.suffix}")
        except BlobMissingError:
            return None

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest steps."""
        steps = self.steps
        for step in steps[: max(0, len(steps) - count)]:
            self.files.delete(_name(step))
            self.files.delete(f"{_name(step)}{self.suffix}")

    def _found(self, folder: str) -> list[tuple[int, int, str]]:
        """Return step, epoch and key of each file in a folder."""
        found = []
        for blob in self.files.files(folder):
            path = PurePosixPath(folder, blob.key)
            *parents, name = path.parts
            if not name.endswith(self.suffix):
                continue
            name = name.removesuffix(self.suffix)
            step, epoch = (parents[0], _EPOCH.fullmatch(name)) if parents else (name, None)
            if (number := _FOLDER.fullmatch(step)) and (epoch or not parents):
                found.append((int(number[1]), int(epoch[1]) if epoch else 0, str(path)))
        return found


class RowResults:
    """Results of one inference job: those of a step count once the step is recorded."""

    def __init__(self, job_files: Blobs) -> None:
        """Use the files of the job."""
        self._files = StepFiles(job_files.below(_RESULTS), ".jsonl.zlib")

    def write(self, step: int, lines: Sequence[bytes], *, epoch: int) -> None:
        """Store a step's lines under a lease's epoch.

        Raises:
            StorageFullError: The disk is full.
        """
        self._files.write(step, zlib.compress(b"\n".join(lines), 1), epoch=epoch)

    def read(self, first_step: int, last_step: int) -> Iterator[bytes]:
        """Yield the lines of recorded steps, in order, up to one that is missing."""
        for step in range(first_step, last_step + 1):
            packed = self._files.read(step)
            if packed is None:
                return  # Those after it would leave a hole.
            yield from zlib.decompress(packed).split(b"\n")


def _name(step: int) -> str:
    return f"step-{step:06d}"
