"""What stops a job loop from outside: a cancellation, the end of its worker, the loss of its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

from backend.errors import LeaseLostError
from tinkergym.errors import JobCancelledError, TinkerGymError


class WorkerStoppingError(TinkerGymError):
    """The worker ends in an orderly way; the job goes back into the queue."""


class ClientSilentError(TinkerGymError):
    """Nothing was heard from the job's client for long: the job gives its place up until one comes."""


class PausedError(TinkerGymError):
    """The job is to pause: its tenant asked for it, or its budget is used up."""

    def __init__(self, message: str, *, asked: bool) -> None:
        super().__init__(message)
        self.asked = asked


class JobControl:
    """Carries those wishes from the heartbeat's thread to the job's. The first one counts."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` makes a waiting job loop look."""
        self._wake = wake
        self._lock = threading.Lock()
        self._error: TinkerGymError | None = None
        self._pause: PausedError | None = None

    def cancel(self) -> None:
        """The tenant wants the job to end."""
        self._set(JobCancelledError("cancelled on request"))

    def pause(self, reason: str, *, asked: bool) -> None:
        """The job is to pause before its next step; an empty reason takes that back.

        Args:
            reason: As the tenant will read it.
            asked: Whether the tenant asked for it.
        """
        was_set = self._pause is not None
        self._pause = PausedError(reason, asked=asked) if reason else None
        if self._pause is not None and not was_set:
            self._wake()

    def stop(self) -> None:
        """The worker is about to end."""
        self._set(WorkerStoppingError("the worker stops"))

    def lose(self, error: LeaseLostError) -> None:
        """The lease is gone: nothing more may be written."""
        self._set(error)

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to end."""
        return isinstance(self._error, WorkerStoppingError)

    def check(self) -> None:
        """Raise what was asked for, where the job may pause: between steps, or while episodes play.

        Raises:
            PausedError: See `pause`.
            JobCancelledError: See `cancel`.
            WorkerStoppingError: See `stop`.
            LeaseLostError: See `lose`.
        """
        self.check_within_step()
        if (pause := self._pause) is not None:
            raise pause

    def check_within_step(self) -> None:
        """As `check`, but a pause waits for the end of the step, so that it has the step's checkpoint.

        Raises:
            JobCancelledError: See `cancel`.
            WorkerStoppingError: See `stop`.
            LeaseLostError: See `lose`.
        """
        if self._error is not None:
            raise self._error

    def _set(self, error: TinkerGymError) -> None:
        with self._lock:
            # A lost lease outranks the rest: whoever holds the job now will see those wishes.
            if self._error is None or isinstance(error, LeaseLostError):
                self._error = error
        self._wake()
