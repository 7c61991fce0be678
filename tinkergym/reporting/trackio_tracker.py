"""Trackio: one run per job, in its local database or in a Hugging Face Space."""

from __future__ import annotations

from typing import Any

from tinkergym.reporting.callbacks import package
from tinkergym.reporting.notes import Note, WaitingNotes
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView


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
        self._waiting = WaitingNotes(
            lambda columns, rows: self._trackio.Table(columns=list(columns), data=rows)
        )
        self._last_step = self._last_note = 0

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

    def report(self, point: Point) -> None:
        """Pass the values, and the notes before them, to trackio, which writes them in the background."""
        self._last_step = point.step
        self._run.log({**point.values, **self._waiting.taken()}, step=point.step)

    def last_note(self) -> int:
        """Return the number of the last note in the run."""
        return self._last_note

    def tell(self, note: Note) -> None:
        """Keep a note for the next point."""
        self._waiting.add(note)

    def end(self, state: JobState | None) -> None:
        """Wait until everything is written; notes behind the last point get a row once the job has ended."""
        if state is not None and (left := self._waiting.taken()):
            self._run.log(left, step=self._last_step + 1)
        self._run.finish()
