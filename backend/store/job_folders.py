"""The folders of jobs, and how one is deleted so that a kill at any moment loses or leaves nothing.

The folder is put away under another name before the job's rows are gone for good, and removed after. What is
found put away at a start belongs to a deletion that was cut off: without rows it is removed, with rows it is
put back.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)
_PUT_AWAY = ".deleted-"


class JobFolders:
    """`<root>/<job id>/`, with a job's checkpoints."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def size(self, job_id: str) -> int:
        """Return how many bytes of files a job has."""
        total = 0
        for path in (self._root / job_id).rglob("*"):
            with suppress(OSError):  # removed meanwhile
                total += path.stat().st_size if path.is_file() else 0
        return total

    @contextmanager
    def deleting(self, job_id: str) -> Iterator[Callable[[], None]]:
        """Yield what puts the folder away, to be called last in the transaction that deletes the job.

        After the block the folder is removed; if the block fails, it is put back.
        """
        folder, away = self._root / job_id, self._root / f"{_PUT_AWAY}{job_id}"
        moved = False

        def put_away() -> None:
            nonlocal moved
            with suppress(FileNotFoundError):
                folder.rename(away)
                moved = True

        try:
            yield put_away
        except BaseException:
            if moved:
                away.rename(folder)
            raise
        if moved:
            _remove(away)

    def finish(self, is_there: Callable[[str], bool]) -> None:
        """Finish or undo deletions that were cut off; only while nobody deletes.

        Args:
            is_there: Whether there is a job of this id.
        """
        for away in self._root.glob(f"{_PUT_AWAY}*"):
            job_id = away.name.removeprefix(_PUT_AWAY)
            if is_there(job_id):
                away.rename(self._root / job_id)
            else:
                _remove(away)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError:
        # The job is gone; what is left of its files goes at the next start.
        _log.exception("%s is not removed yet", folder)
