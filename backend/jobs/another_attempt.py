"""Give a job another attempt after an external interruption, up to a limit.

Attempts are counted from the job's events, so it does not matter which worker has it.
"""

from __future__ import annotations

from backend.store.store import JobLease, ServiceStore
from tinkergym.errors import TinkerGymError
from tinkergym.schema.events import ErrorView, JobState

RANK_LOST = "a rank of the learner was lost"
NOT_TAKEN_UP = "its worker could not take it up"
UNAVAILABLE = "a part of the service was not available"

_MOST_ATTEMPTS = {RANK_LOST: 3, NOT_TAKEN_UP: 3, UNAVAILABLE: 5}
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
        store.release(lease, f"{why}; resumes from the last checkpoint")
