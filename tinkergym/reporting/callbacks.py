"""The protocol for trackers and your own callbacks, which receive a job's progress; trackers' packages."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable

from tinkergym.errors import MissingExtraError
from tinkergym.reporting.notes import Note
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView


@runtime_checkable
class Callback(Protocol):
    """Receives every train step of one job, once and in order.

    The methods are called from one background thread. An exception is shown as a warning and ends this
    callback, not the job.
    """

    def begin(self, job: JobView) -> int:
        """Prepare for a job.

        Called first, also when a script attaches to a job again.

        Returns:
            The last step that was already reported, by this or an earlier process; 0 if none. Only later
            steps are reported, so a callback that stores points must find out which ones it has.
        """
        ...

    def report(self, point: Point) -> None:
        """Receive the metrics of a train step."""
        ...

    def end(self, state: JobState | None) -> None:
        """Finish.

        Args:
            state: How the job ended; None if it continues and this process stops listening.
        """
        ...


@runtime_checkable
class NoteTaker(Protocol):
    """A callback that also receives completions, evaluations, updates and pauses.

    Each note is sent once and in order, between the points; `begin` has been called before.
    """

    def last_note(self) -> int:
        """Return the number (`Note.seq`) of the last note received; 0 if none was.

        Received by this or an earlier process, as in `begin`.
        """
        ...

    def tell(self, note: Note) -> None:
        """Take a note."""
        ...


def package(name: str) -> Any:
    """Import a tracker's package, or a module of it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        distribution = name.partition(".")[0]
        raise MissingExtraError(
            f"report_to={distribution!r} needs the package {distribution}: {error}",
            hint=f"pip install {distribution}",
        ) from error
