"""Which loop runs which kind of job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.jobs.distillation_strategy import Distillation
from backend.jobs.inference_job import InferenceJob
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.own_loop_job import PolicyJob
from backend.jobs.played_job import PlayedJob
from backend.jobs.preference_job import PreferenceJob
from backend.jobs.rl_strategy import Reinforcement
from backend.jobs.sft_job import SFTJob

_LOOPS: dict[str, Callable[[JobContext[Any]], JobLoop[Any]]] = {
    "rl": lambda context: PlayedJob(context, Reinforcement()),
    "distillation": lambda context: PlayedJob(context, Distillation()),
    "sft": SFTJob,
    "preference": PreferenceJob,
    "inference": InferenceJob,
    "policy": PolicyJob,
}


def loop_of(context: JobContext[Any]) -> JobLoop[Any]:
    """Return the loop for a job's kind."""
    return _LOOPS[context.lease.spec.kind](context)
