"""Episodes of recorded steps as files: one per step, next to the job's checkpoints.

The database stores what a resumed job may have to replay; episodes covered by a checkpoint move here, still
compressed. A file appears atomically, and writing it twice writes the same bytes.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence

from backend.store.blobs import BlobMissingError, Blobs

EPISODES_FOLDER = "episodes"
"""The folder among a job's files."""

_LENGTH = struct.Struct("<I")
_NAME = re.compile(r"step-(\d{6,})\.zlib")


class KeptEpisodes:
    """Files `step-000012.zlib`: length and zlib-compressed JSON of each episode in turn."""

    def __init__(self, files: Blobs) -> None:
        self._files = files

    @property
    def steps(self) -> list[int]:
        """The stored steps, in order."""
        found = (_NAME.fullmatch(blob.key) for blob in self._files.files())
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, packed: Sequence[bytes]) -> None:
        """Store a step's episodes.

        Args:
            step: The step.
            packed: Each episode's JSON, compressed by zlib.

        Raises:
            StorageFullError: The disk is full.
        """
        self._files.put(_key(step), b"".join(_LENGTH.pack(len(blob)) + blob for blob in packed))

    def read(self, step: int) -> Iterator[bytes]:
        """Yield each episode's JSON; nothing if the step is not stored."""
        try:
            body = self._files.get(_key(step))
        except BlobMissingError:
            return
        position = 0
        while position < len(body):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            yield zlib.decompress(body[position : position + length])
            position += length

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest steps."""
        steps = self.steps
        for step in steps[: max(0, len(steps) - count)]:
            self._files.delete(_key(step))


def _key(step: int) -> str:
    return f"step-{step:06d}.zlib"
