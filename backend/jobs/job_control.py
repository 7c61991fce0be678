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


class JobControl:
    """Carries those wishes from the heartbeat's thread to the job's. The first one counts."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` makes a waiting job loop look."""
        self._wake = wake
        self._lock = threading.Lock()
        self._error: TinkerGymError | None = None

    def cancel(self) -> None:
        """The tenant wants the job to end."""
        self._set(JobCancelledError("cancelled on request"))

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
        """Raise what was asked for.

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
