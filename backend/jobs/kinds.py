"""Which loop runs which kind of job."""

from __future__ import annotations

from typing import Any, cast

from backend.jobs.distillation import DistillationJob
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.own_loop import PolicyJob
from backend.jobs.preference import PreferenceJob
from backend.jobs.rl import RLJob
from backend.jobs.sft import SFTJob
from tinkergym.schema.jobs.common import TrainingSpec
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.rl import RLSpec


def loop_of(context: JobContext[TrainingSpec]) -> JobLoop[Any]:
    """Return the loop for a job's kind."""
    spec = context.lease.spec
    match spec:
        case RLSpec():
            return RLJob(cast("JobContext[RLSpec]", context))
        case SFTSpec():
            return SFTJob(cast("JobContext[SFTSpec]", context))
        case PreferenceSpec():
            return PreferenceJob(cast("JobContext[PreferenceSpec]", context))
        case DistillationSpec():
            return DistillationJob(context, spec)
        case PolicySpec():
            return PolicyJob(cast("JobContext[PolicySpec]", context))
