"""What is told of a job while it trains: the protocol, for trackers and for callbacks of one's own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs import JobView


@runtime_checkable
class Callback(Protocol):
    """Is told of every train step of one job, each once and in order.

    The methods are called from one background thread. What they raise is shown as a warning and ends this
    callback, not the job.
    """

    def begin(self, job: JobView) -> int:
        """Prepare for a job.

        Called before anything else, also when a script attaches to a job again.

        Returns:
            The last step that was reported before, by this or an earlier process; 0 if none was. Only later
            steps are reported, so whoever keeps points must find out which ones it has.
        """
        ...

    def report(self, point: Point) -> None:
        """Take the numbers of a train step."""
        ...

    def end(self, state: JobState | None) -> None:
        """Finish.

        Args:
            state: How the job ended; None if it goes on and this process stopped to listen.
        """
        ...
