"""What a job loop works with: its lease, and the pool's shared parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from backend.config import DType
from backend.learner.learner import Learner
from backend.rollout.engines.protocol import SamplingEngine
from backend.store.store import JobLease, ServiceStore
from backend.training.boards import Boards
from backend.training.early_requests import EarlyRequests
from backend.training.job_control import JobControl
from backend.training.policies import PolicyDirectory
from backend.training.pool_learner import AnyLearner
from backend.training.step_change import StepChange
from backend.training.step_clock import StepClock
from tinkergym.wire import PlayedSpec, TrainingSpec

_PARITY_THRESHOLDS: dict[DType, float] = {"float32": 1e-3, "bfloat16": 2e-2}

SpecT_co = TypeVar("SpecT_co", bound=TrainingSpec, covariant=True)
"""Which kind of job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(Generic[SpecT_co]):
    """One job at work."""

    lease: JobLease
    spec: SpecT_co
    """What the user asked for; the lease's own, or that part of it which a phase of the job understands."""
    store: ServiceStore
    learner: AnyLearner
    engine: SamplingEngine
    boards: Boards
    early: EarlyRequests
    policies: PolicyDirectory
    control: JobControl
    clock: StepClock
    checkpoints_dir: Path
    """`<jobs_dir>/<job_id>/checkpoints`"""
    open_model: Callable[[str], Learner]
    """Loads another model than the pool's, for this job alone."""
    data_dir: Path
    """Where the service keeps uploaded data."""
    lease_seconds: float
    """Of an episode."""
    client_place_seconds: float
    """After so much silence of its client the job gives its place up."""
    dtype: DType = "float32"
    """In which the pool computes."""
    sleep_while_learning: bool = False
    """Whether the engine gives its memory to the learner meanwhile."""
    change: StepChange = field(default_factory=StepChange)
    """Whether the step at hand has begun to change the policy."""

    @property
    def job_id(self) -> str:
        """Also the id of the policy that the job trains."""
        return self.lease.job_id

    @property
    def parity_threshold(self) -> float:
        """Mean difference between learner's and engine's logprobs, in nats, that the job allows."""
        asked = self.spec.parity_threshold if isinstance(self.spec, PlayedSpec) else None
        return _PARITY_THRESHOLDS[self.dtype] if asked is None else asked

    @property
    def in_lockstep(self) -> bool:
        """Whether a step's episodes are sampled in common batches, and so played by one worker as a whole."""
        # A script plays one episode after the other: there is nothing to keep in step.
        spec = self.spec
        return isinstance(spec, PlayedSpec) and spec.deterministic and spec.rollout != "script"
