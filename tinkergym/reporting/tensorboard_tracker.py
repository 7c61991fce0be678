"""TensorBoard: scalars in event files, without TensorFlow or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkergym.reporting.callbacks import package
from tinkergym.reporting.file_trackers import RUNS
from tinkergym.reporting.notes import Note
from tinkergym.reporting.points import Point
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.view import JobView

_SEQ = "notes/seq"
"""A note's number; float32 holds those of any job exactly."""


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
        self._tensors = package("tensorboard.compat.proto.tensor_pb2").TensorProto
        self._types = package("tensorboard.compat.proto.types_pb2")
        self._writer: Any = None
        self._last_note = 0

    def begin(self, job: JobView) -> int:
        """Start another event file; return the last step in the existing ones."""
        folder = self._folder / job.job_id
        loader = package("tensorboard.backend.event_processing.event_file_loader").LegacyEventFileLoader
        last = self._last_note = 0
        for path in sorted(folder.glob("events.out.tfevents.*")):
            for event in loader(str(path)).Load():
                values = event.summary.value if event.HasField("summary") else ()
                seq = next((value.simple_value for value in values if value.tag == _SEQ), None)
                if seq is not None:
                    self._last_note = max(self._last_note, int(seq))
                elif values:
                    last = max(last, int(event.step))
        self._writer = self._writing.EventFileWriter(str(folder))
        return last

    def report(self, point: Point) -> None:
        """Write the values as one record."""
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in point.values.items()
        ]
        self._write(values, point.step, point.time)

    def last_note(self) -> int:
        """Return the number of the last note in the files."""
        return self._last_note

    def tell(self, note: Note) -> None:
        """Write a text, and an evaluation's numbers, as one record."""
        value = self._summaries.Summary.Value
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        text = self._tensors(dtype=self._types.DT_STRING, string_val=[note.text.encode("utf-8", "replace")])
        tag = f"completions/{note.row['agent']}" if note.kind == "completion" else f"notes/{note.kind}"
        values = [
            value(tag=_SEQ, simple_value=float(note.seq)),
            value(tag=tag, tensor=text, metadata=self._summaries.SummaryMetadata(plugin_data=plugin)),
            *(value(tag=name, simple_value=number) for name, number in note.values.items()),
        ]
        self._write(values, note.step, note.time)

    def _write(self, values: Any, step: int, time: float) -> None:
        """Write one record, of which a kill leaves all or nothing."""
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=time, step=step, summary=summary))
        self._writer.flush()

    def end(self, state: JobState | None) -> None:
        """Close the file."""
        self._writer.close()
