"""Output of child processes, stored in files of bounded size: its beginning and its end.

The child writes to a pipe, so that the bound also holds for C libraries and `os.write`.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

FILE_BYTES = 8 * 2**20
"""A log takes at most three times this: `x.log`, `x.log.1` (the part before it) and `x.log.first`."""

_CHUNK_BYTES = 2**16


class BoundedLog:
    """Pass `descriptor` to a child as its standard output, then leave the block, which closes it here."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        """Start appending what is written to `descriptor` to the file.

        Raises:
            OSError: The file cannot be written.
            RuntimeError: The system cannot start a thread.
        """
        self._path, self._file_bytes = path, file_bytes
        self._file = path.open("ab", buffering=0)
        if self._file.tell() > file_bytes // 2:
            self._put_aside(".1")  # Otherwise little of this child's beginning would fit.
        self._kept_beginning = False
        reading, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(reading,), name="child's log", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # The system cannot start more threads.
            for opened in (reading, self.descriptor):
                os.close(opened)
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def join(self, seconds: float) -> None:
        """Wait until everything is in the file, which is when all writers have ended."""
        self._thread.join(seconds)

    def _run(self, reading: int) -> None:
        while data := os.read(reading, _CHUNK_BYTES):
            # With a full disk the child continues, and its output is lost.
            with suppress(OSError):
                self._write(data)
        os.close(reading)
        self._file.close()

    def _write(self, data: bytes) -> None:
        while data:
            if self._file.tell() >= self._file_bytes:
                self._put_aside(".1" if self._kept_beginning else ".first")
                self._kept_beginning = True
            room = self._file_bytes - self._file.tell()
            self._file.write(data[:room])
            data = data[room:]

    def _put_aside(self, ending: str) -> None:
        self._path.replace(f"{self._path}{ending}")
        full, self._file = self._file, self._path.open("ab", buffering=0)
        full.close()
