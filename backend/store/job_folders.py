"""The folders of jobs, and how one is deleted so that a kill at any moment loses or leaves nothing.

The folder is put away under another name before the job's rows are gone for good, and removed after. What is
found put away at a start belongs to a deletion that was cut off: without rows it is removed, with rows it is
put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backend.store.blobs import Blobs

_log = logging.getLogger(__name__)
_PUT_AWAY = ".deleted-"


class JobFolders:
    """`<job id>/`, with a job's checkpoints."""

    def __init__(self, job_files: Blobs) -> None:
        self._files = job_files

    def size(self, job_id: str) -> int:
        """Return how many bytes of files a job has."""
        return sum(blob.bytes for blob in self._files.files(job_id))

    @contextmanager
    def deleting(self, job_id: str) -> Iterator[Callable[[], None]]:
        """Yield what puts the folder away, to be called last in the transaction that deletes the job.

        After the block the folder is removed; if the block fails, it is put back.
        """
        away, moved = f"{_PUT_AWAY}{job_id}", False

        def put_away() -> None:
            nonlocal moved
            moved = self._files.move(job_id, away) or moved

        try:
            yield put_away
        except BaseException:
            if moved:
                self._files.move(away, job_id)
            raise
        if moved:
            self._remove(away)

    def finish(self, is_there: Callable[[str], bool]) -> None:
        """Finish or undo deletions that were cut off; only while nobody deletes.

        Args:
            is_there: Whether there is a job of this id.
        """
        for away in self._files.folders():
            if not away.startswith(_PUT_AWAY):
                continue
            job_id = away.removeprefix(_PUT_AWAY)
            if is_there(job_id):
                self._files.move(away, job_id)
            else:
                self._remove(away)

    def _remove(self, folder: str) -> None:
        try:
            self._files.delete(folder)
        except OSError:
            # The job is gone; what is left of its files goes at the next start.
            _log.exception("%s is not removed yet", folder)
