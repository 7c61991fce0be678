"""External reasons to stop a job loop, and other attempts after an interruption, up to a limit.

Attempts are counted from the job's events, so it does not matter which worker has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from backend.errors import LeaseLostError, PausedError, WorkerStoppingError
from backend.store.store import JobLease, ServiceStore
from tinkergym.errors import JobCancelledError, TinkerGymError
from tinkergym.schema.events import ErrorView, JobState


class JobControl:
    """Passes requests to stop, pause or give up the place from the heartbeat's thread to the job's.

    The first one counts.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` makes a waiting job loop check."""
        self._wake = wake
        self._lock = threading.Lock()
        self._error: TinkerGymError | None = None
        self._pause: PausedError | None = None
        self._came = threading.Event()

    def cancel(self) -> None:
        """The tenant cancels the job."""
        self._set(JobCancelledError("cancelled on request"))

    def pause(self, reason: str, *, asked: bool) -> None:
        """The job should pause before its next step; an empty reason cancels that.

        Args:
            reason: The reason shown to the tenant.
            asked: Whether the tenant asked for it.
        """
        was_set = self._pause is not None
        self._pause = PausedError(reason, asked=asked) if reason else None
        if self._pause is not None and not was_set:
            self._wake()

    def stop(self) -> None:
        """The worker is about to end."""
        self._set(WorkerStoppingError("the worker stops"))

    def mark_lease_lost(self, error: LeaseLostError) -> None:
        """The lease is lost: nothing more may be written."""
        self._set(error)

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to end."""
        return isinstance(self._error, WorkerStoppingError)

    def check(self) -> None:
        """Raise a pending request, where the job may pause: between steps, or while episodes play.

        Raises:
            PausedError: See `pause`.
            JobCancelledError: See `cancel`.
            WorkerStoppingError: See `stop`.
            LeaseLostError: See `mark_lease_lost`.
        """
        self.check_within_step()
        # Read once, as the heartbeat's thread may take it back.
        if (pause := self._pause) is not None:
            raise pause

    def check_within_step(self) -> None:
        """Like `check`, but a pause waits for the end of the step, so that it has the step's checkpoint.

        Raises:
            JobCancelledError: See `cancel`.
            WorkerStoppingError: See `stop`.
            LeaseLostError: See `mark_lease_lost`.
        """
        if self._error is not None:
            raise self._error

    def wait(self, seconds: float) -> None:
        """Wait this long, or until there is a request that `check_within_step` raises."""
        self._came.wait(seconds)

    def _set(self, error: TinkerGymError) -> None:
        with self._lock:
            # A lost lease has priority: the job's new holder will handle the other requests.
            if self._error is None or isinstance(error, LeaseLostError):
                self._error = error
        self._came.set()
        self._wake()


RANK_LOST = "a rank of the learner was lost; resumes from the last checkpoint"
NOT_TAKEN_UP = "its worker could not take it up; resumes from the last checkpoint"
NO_MEMORY = "its worker ran out of memory; resumes from the last checkpoint"
UNAVAILABLE = "a part of the service was not available; resumes from the last checkpoint"

_MOST_ATTEMPTS = {RANK_LOST: 3, NOT_TAKEN_UP: 3, NO_MEMORY: 3, UNAVAILABLE: 5}
"""After this many attempts without a new step in between, the job itself is considered the cause."""


def begin_again(store: ServiceStore, lease: JobLease, why: str, error: TinkerGymError) -> None:
    """Return the job to the queue to resume from its last checkpoint; fail it if this happens too often.

    Args:
        store: The service's store.
        lease: The lease of the job.
        why: One of the reasons above.
        error: The error if the job fails.

    Raises:
        LeaseLostError: Another worker has the job, or it ended.
    """
    attempts = 1 + store.deaths_since_step(lease.job_id, why)
    if attempts >= _MOST_ATTEMPTS[why]:
        store.set_state(lease, JobState.FAILED, str(error), ErrorView.model_validate(error.to_wire()))
    else:
        store.release(lease, why)
