"""Another attempt at a job that something else may have broken off, and an end to such attempts.

The events of the job are what is counted, so it is no matter which worker has it.
"""

from __future__ import annotations

from backend.store.store import JobLease, ServiceStore
from tinkergym.errors import TinkerGymError
from tinkergym.schema.events import ErrorView, JobState

RANK_LOST = "a rank of the learner was lost"
NOT_TAKEN_UP = "its worker could not take it up"
UNAVAILABLE = "a part of the service was not available"

_MOST_ATTEMPTS = {RANK_LOST: 3, NOT_TAKEN_UP: 3, UNAVAILABLE: 5}
"""So often without a new step in between, and the job is taken for the reason."""


def begin_again(store: ServiceStore, lease: JobLease, why: str, error: TinkerGymError) -> None:
    """Hand the job back, to resume from its last checkpoint; one that this happens to too often fails.

    Args:
        store: Of the service.
        lease: Under which the job was held.
        why: One of the reasons above.
        error: What the job fails with.

    Raises:
        LeaseLostError: Another worker has the job, or it ended.
    """
    attempts = 1 + store.deaths_since_step(lease.job_id, why)
    if attempts >= _MOST_ATTEMPTS[why]:
        store.set_state(lease, JobState.FAILED, str(error), ErrorView.model_validate(error.to_wire()))
    else:
        store.release(lease, f"{why}; resumes from the last checkpoint")
