"""Trackio: one run per job, in its local database or in a Hugging Face Space."""

from __future__ import annotations

from typing import Any

from tinkergym.reporting.callbacks import package
from tinkergym.reporting.notes import RowTracker, WaitingNotes
from tinkergym.schema.jobs.view import JobView


class TrackioTracker(RowTracker):
    """Reports to Trackio; view the runs with `trackio show --project tinkergym`."""

    def __init__(self, project: str = "tinkergym", **settings: Any) -> None:
        """Set the project.

        Args:
            project: Created if it is missing.
            **settings: Further arguments of `trackio.init`.

        Raises:
            MissingExtraError: trackio is not installed.
        """
        self._trackio = package("trackio")
        self._storage = package("trackio.sqlite_storage").SQLiteStorage
        super().__init__(self._trackio, project, settings)

    def begin(self, job: JobView) -> int:
        """Create or continue the job's run; return its last step."""
        # Before `init`, which may start writing. Steps are stored in order.
        last = self._storage.get_max_step_for_run(self._project, job.job_id)
        rows = self._storage.get_logs(self._project, job.job_id) if last else []
        self._last_note = max((int(row.get(WaitingNotes.SEQ) or 0) for row in rows), default=0)
        self._last_step = last or 0
        config = {"model": job.spec.model, "kind": job.spec.kind, "name": job.spec.name}
        settings = {"embed": False, "resume": "allow", "config": config} | self._settings
        self._run = self._trackio.init(project=self._project, name=job.job_id, **settings)
        return last or 0
