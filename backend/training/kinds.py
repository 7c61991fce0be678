"""Which loop runs which kind of job."""

from __future__ import annotations

from typing import Any, cast

from backend.training.distillation import DistillationJob
from backend.training.job_context import JobContext
from backend.training.job_loop import JobLoop
from backend.training.preference import PreferenceJob
from backend.training.rl import RLJob
from backend.training.sft import SFTJob
from tinkergym.wire import JobSpec, TrainingSpec
from tinkergym.wire_jobs import DistillationSpec, PreferenceSpec, SFTSpec


def loop_of(context: JobContext[TrainingSpec]) -> JobLoop[Any]:
    """Return the loop for a job's kind."""
    spec = context.lease.spec
    match spec:
        case JobSpec():
            return RLJob(cast("JobContext[JobSpec]", context))
        case SFTSpec():
            return SFTJob(cast("JobContext[SFTSpec]", context))
        case PreferenceSpec():
            return PreferenceJob(cast("JobContext[PreferenceSpec]", context))
        case DistillationSpec():
            return DistillationJob(context, spec)
