"""Reports a job's steps to callbacks in its own thread: in order, each step once, without gaps."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tinkergym.errors import TinkerGymError
from tinkergym.reporting.callbacks import Callback, NoteTaker
from tinkergym.reporting.notes import Note, Notes
from tinkergym.reporting.points import Happenings, Point, point_of
from tinkergym.schema.events import Event, JobState, StateEvent, StepEvent
from tinkergym.schema.jobs.view import JobView

Follow = Callable[[Callable[[], None]], Iterator[Event]]
"""Yields a job's events from the first; regularly calls the given function, which may end the iteration."""

_END_SECONDS = 120.0
"""How long a script whose job has ended waits for trackers."""
_LEAVE_SECONDS = 5.0


class _StoppedError(Exception):
    pass


class Reporter:
    """Follows one job for some callbacks until it ends or `close` is called.

    A daemon thread: it ends with the script. The next one starts with the first event again and skips what
    each callback has.
    """

    def __init__(self, job: JobView, follow: Follow, callbacks: Sequence[Callback]) -> None:
        """Start following."""
        self._job, self._follow = job, follow
        self._last: dict[int, int] = {}
        """By index of a callback; failed ones are left out."""
        self._last_notes: dict[int, int] = {}
        """Likewise, of those that take notes."""
        self._callbacks = list(callbacks)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tinkergym-reporter", daemon=True)
        self._thread.start()

    def close(self, *, ended: bool) -> None:
        """Wait until everything is reported, if the job has ended; otherwise stop soon.

        Args:
            ended: Whether the job has ended.
        """
        if not ended:
            self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_SECONDS if ended else _LEAVE_SECONDS)

    def _run(self) -> None:
        for place, callback in enumerate(self._callbacks):
            with self._guarded(place):
                self._last[place] = int(callback.begin(self._job))
                if isinstance(callback, NoteTaker):
                    self._last_notes[place] = int(callback.last_note())
        state: JobState | None = None
        happened, notes = Happenings(), Notes()
        try:
            for event in self._follow(self._check):
                happened.note(event)
                for note in notes.of(event):
                    self._tell(note)
                if isinstance(event.body, StepEvent):
                    self._report(happened.added_to(point_of(event.body, event.time)))
                elif isinstance(event.body, StateEvent) and event.body.state.final:
                    state = event.body.state
                if not self._last:
                    return
        except _StoppedError:
            pass
        except TinkerGymError as error:
            # The service is gone or the client was closed; the next script continues from here.
            if not self._stop.is_set():
                warnings.warn(f"reporting of {self._job.job_id} stopped: {error}", stacklevel=2)
        for place in list(self._last):
            with self._guarded(place):
                self._callbacks[place].end(state)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _report(self, point: Point) -> None:
        for place, last in list(self._last.items()):
            # A resumed job repeats steps with the same numbers.
            if point.step > last:
                self._last[place] = point.step
                with self._guarded(place):
                    self._callbacks[place].report(point)

    def _tell(self, note: Note) -> None:
        for place, last in list(self._last_notes.items()):
            callback = self._callbacks[place]
            if note.seq > last and place in self._last and isinstance(callback, NoteTaker):
                self._last_notes[place] = note.seq
                with self._guarded(place):
                    callback.tell(note)

    @contextmanager
    def _guarded(self, place: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # A failing tracker must not affect the job.
            self._last.pop(place, None)
            warnings.warn(
                f"{type(self._callbacks[place]).__name__} failed and gets no more steps of "
                f"{self._job.job_id}; attach again to continue: {type(error).__name__}: {error}",
                stacklevel=2,
            )
