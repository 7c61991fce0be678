"""A distillation job's teacher: another model, or what another job trained."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from backend.learner.sequences import FloatArray, TrainSequence
from backend.training.job_context import JobContext
from backend.training.pool_learner import AnyLearner
from tinkergym.errors import NotFoundError
from tinkergym.wire import TrainingSpec
from tinkergym.wire_jobs import DistillationSpec


class Teacher:
    """Frozen weights beside the student's."""

    def __init__(self, learner: AnyLearner, policy_id: str | None, *, shared: bool) -> None:
        """Ask `policy_id` of `learner`, None is its base model; `shared`: others use the learner too."""
        self._learner: AnyLearner | None = learner
        self._policy_id, self._shared = policy_id, shared

    @classmethod
    def of(cls, context: JobContext[TrainingSpec], spec: DistillationSpec) -> Teacher:
        """Load the teacher that a job names.

        Raises:
            NotFoundError: The checkpoint that holds it is no longer there.
            UnknownModelError: There is no such model.
        """
        if not spec.teacher.startswith("job-"):
            same = spec.teacher == spec.model
            learner = context.learner if same else context.open_model(spec.teacher)
            return cls(learner, None, shared=same)
        taught = context.store.job(spec.teacher.partition("@")[0]).spec
        directory = _own_copy(context, spec.teacher)
        same = taught.model == spec.model
        learner = context.learner if same else context.open_model(taught.model)
        policy_id = f"{context.job_id}-teacher"
        with suppress(NotFoundError):
            learner.drop(policy_id)
        learner.load(policy_id, directory, taught.adapter, fresh_optimiser=True)
        return cls(learner, policy_id, shared=same)

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        assert self._learner is not None, "it is asked only until it is closed"
        return self._learner.logprobs(self._policy_id, sequences)

    def close(self) -> None:
        """Free the memory."""
        learner, self._learner = self._learner, None
        if learner is None:
            return
        if not self._shared:
            # transformers' modules refer to each other in circles, which hold a model's memory until then.
            del learner
            gc.collect()
        elif self._policy_id is not None:
            learner.drop(self._policy_id)


def _own_copy(context: JobContext[TrainingSpec], teacher: str) -> Path:
    """Keep the teacher's checkpoint with the job: the other job may remove it before this one has ended."""
    kept = context.checkpoints_dir.parent / "teacher"
    if kept.is_dir():
        return kept
    job_id, _, version = teacher.partition("@")
    for view in context.store.checkpoints(job_id):
        if view.policy_version == int(version):
            part = kept.with_name(f".teacher-{os.getpid()}")
            shutil.rmtree(part, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(view.path, part)
            part.rename(kept)
            return kept
    raise NotFoundError(
        f"{teacher} is there no longer: its job has removed that checkpoint",
        hint="name a version that is kept, or a job that has ended",
        field="teacher",
    )
