"""Results of inference jobs: a file per step, which counts once the step is recorded."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from backend.store.blobs import Blobs
from backend.store.step_files import StepFiles

_FOLDER = "results"


class RowResults:
    """The results of one job."""

    def __init__(self, job_files: Blobs) -> None:
        """Use the files of the job."""
        self._files = StepFiles(job_files.below(_FOLDER), ".jsonl.zlib")

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
