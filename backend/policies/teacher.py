"""Weights that are used but not trained: initial policies, and the teachers of distillation jobs."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from backend.learner.sequences import FloatArray, TrainSequence
from backend.policies.policy_binding import PolicyBinding
from backend.policies.pool_learner import AnyLearner
from backend.store.blobs import MANIFEST
from backend.store.references import ReferredPolicy
from tinkergym.errors import NotFoundError
from tinkergym.schema.ids import PolicyRef


class LoadedPolicy:
    """A policy in a learner, or the learner's base model."""

    def __init__(self, learner: AnyLearner, policy_id: str | None, *, shared: bool) -> None:
        """Use `policy_id` of `learner`; None is its base model; with `shared`, `close` keeps the learner."""
        self._learner: AnyLearner | None = learner
        self._policy_id, self._shared = policy_id, shared

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        assert self._learner is not None, "it was closed"
        return self._learner.logprobs(self._policy_id, sequences)

    def close(self) -> None:
        """Free the memory."""
        learner, self._learner = self._learner, None
        if learner is None:
            return
        if self._policy_id is not None:
            learner.drop(self._policy_id)
        if not self._shared:
            # transformers' modules have reference cycles, which hold a model's memory until then.
            del learner
            gc.collect()


_TEACHER = "teacher"


def open_teacher(student: PolicyBinding, teacher: str) -> LoadedPolicy:
    """Load a job's teacher next to its student; the caller closes it.

    Raises:
        NotFoundError: Its checkpoint was deleted.
        UnknownModelError: There is no such model.
    """
    own_model, pool = student.lease.spec.model, student.pool
    if not PolicyRef.is_meant(teacher):
        shared = teacher == own_model
        learner = student.learner if shared else pool.open_model(teacher)
        return LoadedPolicy(learner, None, shared=shared)
    taught = pool.store.find_policy(PolicyRef.parse(teacher, field="teacher"), field="teacher")
    directory = _own_copy(student, taught)
    shared = taught.policy.model == own_model
    learner = student.learner if shared else pool.open_model(taught.policy.model)
    policy_id = f"{student.policy_id}/teacher"
    with suppress(NotFoundError):
        learner.drop(policy_id)
    learner.load(policy_id, directory, taught.policy.adapter, fresh_optimizer=True)
    return LoadedPolicy(learner, policy_id, shared=shared)


def _own_copy(student: PolicyBinding, teacher: ReferredPolicy) -> Path:
    """Keep the teacher's checkpoint with the job: the other job may remove it before this one has ended."""
    files = student.files
    if not files.has(f"{_TEACHER}/{MANIFEST}"):
        source = student.pool.checkpoint(teacher, field="teacher")
        with files.filling(_TEACHER) as folder:
            folder.mkdir()
            for file in (*sorted(set(source.iterdir()) - {source / MANIFEST}), source / MANIFEST):
                shutil.copy(file, folder)  # The manifest last: until then the copy does not count.
    return files.local(_TEACHER)
