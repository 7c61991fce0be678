"""TensorBoard: scalars in event files, without TensorFlow or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkergym.reporting.files import RUNS
from tinkergym.reporting.packages import package
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs import JobView


class TensorBoardTracker:
    """Writes event files; view them with `tensorboard --logdir runs`."""

    def __init__(self, folder: str | Path = RUNS) -> None:
        """Set the target `folder/<job id>/`.

        Raises:
            MissingExtraError: tensorboard is not installed.
        """
        self._folder = Path(folder)
        self._events = package("tensorboard.compat.proto.event_pb2")
        self._summaries = package("tensorboard.compat.proto.summary_pb2")
        self._writing = package("tensorboard.summary.writer.event_file_writer")
        self._writer: Any = None

    def begin(self, job: JobView) -> int:
        """Start another event file; return the last step in the existing ones."""
        folder = self._folder / job.job_id
        loader = package("tensorboard.backend.event_processing.event_file_loader").LegacyEventFileLoader
        steps = [
            int(event.step)
            for path in sorted(folder.glob("events.out.tfevents.*"))
            for event in loader(str(path)).Load()
            if event.HasField("summary")
        ]
        self._writer = self._writing.EventFileWriter(str(folder))
        return max(steps, default=0)

    def report(self, point: Point) -> None:
        """Write the values as one record, so that a kill leaves all of them or none."""
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in point.values.items()
        ]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=point.time, step=point.step, summary=summary))
        self._writer.flush()

    def end(self, state: JobState | None) -> None:
        """Close the file."""
        self._writer.close()
