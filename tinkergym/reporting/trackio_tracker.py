"""Trackio: one run per job, in its local database or in a Hugging Face Space."""

from __future__ import annotations

from typing import Any

from tinkergym.reporting.packages import package
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs import JobView


class TrackioTracker:
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
        self._project, self._settings = project, settings
        self._run: Any = None

    def begin(self, job: JobView) -> int:
        """Create or continue the job's run; return its last step."""
        # Before `init`, which may start writing. Steps are stored in order.
        last = self._storage.get_max_step_for_run(self._project, job.job_id)
        config = {"model": job.spec.model, "kind": job.spec.kind, "name": job.spec.name}
        settings = {"embed": False, "resume": "allow", "config": config} | self._settings
        self._run = self._trackio.init(project=self._project, name=job.job_id, **settings)
        return last or 0

    def report(self, point: Point) -> None:
        """Pass the values to trackio, which writes them in the background."""
        self._run.log(point.values, step=point.step)

    def end(self, state: JobState | None) -> None:
        """Wait until everything is written."""
        self._run.finish()
