"""Job folders, and deleting them so that a kill at any moment neither loses nor leaves behind anything.

The folder is renamed before the job's rows are deleted, and removed afterwards. A renamed folder found at a
start comes from an interrupted deletion: without rows it is removed, with rows it is restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backend.store.blobs import Blobs

_log = logging.getLogger(__name__)
_PUT_AWAY = ".deleted-"


class JobFolders:
    """`<job id>/`, with the job's checkpoints."""

    def __init__(self, job_files: Blobs) -> None:
        self._files = job_files

    def size(self, job_id: str) -> int:
        """Return the size of a job's files in bytes."""
        return sum(blob.bytes for blob in self._files.files(job_id))

    @contextmanager
    def deleting(self, job_id: str) -> Iterator[Callable[[], None]]:
        """Yield a function that renames the folder; call it last in the transaction that deletes the job.

        The folder is removed after the block; if the block fails, it is restored.
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
        """Finish or undo interrupted deletions; must not run while anyone deletes.

        Args:
            is_there: Whether the job exists.
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
            # The job is gone; its remaining files are removed at the next start.
            _log.exception("%s could not be removed yet", folder)
