"""Episodes of recorded steps as files: one per step, next to the job's checkpoints.

The database stores what a resumed job may have to replay; episodes covered by a checkpoint move here, still
compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from backend.store.blobs import Blobs
from backend.store.step_files import StepFiles

_FOLDER = "episodes"
"""The folder among a job's files."""

_LENGTH = struct.Struct("<I")


class KeptEpisodes:
    """Files of steps: length and zlib-compressed JSON of each episode in turn."""

    def __init__(self, job_files: Blobs) -> None:
        self._files = StepFiles(job_files.below(_FOLDER), ".zlib")

    @property
    def steps(self) -> list[int]:
        """The stored steps, in order."""
        return self._files.steps

    def write(self, step: int, packed: Sequence[bytes], *, epoch: int) -> None:
        """Store a step's episodes.

        Args:
            step: The step.
            packed: Each episode's JSON, compressed by zlib.
            epoch: The epoch of the job's lease.

        Raises:
            StorageFullError: The disk is full.
        """
        body = b"".join(_LENGTH.pack(len(blob)) + blob for blob in packed)
        self._files.write(step, body, epoch=epoch)

    def read(self, step: int) -> Iterator[bytes]:
        """Yield each episode's JSON; nothing if the step is not stored."""
        body = self._files.read(step) or b""
        position = 0
        while position < len(body):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            yield zlib.decompress(body[position : position + length])
            position += length

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest steps."""
        self._files.keep_newest(count)
