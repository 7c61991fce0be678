"""A distillation job's teacher: another model, or another job's policy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from backend.policies.bound import Bound
from backend.policies.frozen_policy import FrozenPolicy
from backend.store.references import ReferredPolicy
from tinkergym.errors import NotFoundError
from tinkergym.schema.ids import PolicyRef

_TEACHER = "teacher"


def open_teacher(student: Bound, teacher: str) -> FrozenPolicy:
    """Load a job's teacher next to its student; the caller closes it.

    Raises:
        NotFoundError: Its checkpoint was deleted.
        UnknownModelError: There is no such model.
    """
    own_model, pool = student.lease.spec.model, student.pool
    if not PolicyRef.is_meant(teacher):
        shared = teacher == own_model
        learner = student.learner if shared else pool.open_model(teacher)
        return FrozenPolicy(learner, None, shared=shared)
    taught = pool.store.find_policy(PolicyRef.parse(teacher, field="teacher"), field="teacher")
    directory = _own_copy(student, taught)
    shared = taught.policy.model == own_model
    learner = student.learner if shared else pool.open_model(taught.policy.model)
    policy_id = f"{student.policy_id}/teacher"
    with suppress(NotFoundError):
        learner.drop(policy_id)
    learner.load(policy_id, directory, taught.policy.adapter, fresh_optimiser=True)
    return FrozenPolicy(learner, policy_id, shared=shared)


def _own_copy(student: Bound, teacher: ReferredPolicy) -> Path:
    """Keep the teacher's checkpoint with the job: the other job may remove it before this one has ended."""
    if not student.files.has(_TEACHER):
        student.files.put_folder(_TEACHER, student.pool.checkpoint(teacher, field="teacher"))
    return student.files.local(_TEACHER)
