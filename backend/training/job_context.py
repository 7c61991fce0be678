"""What a job loop works with: its lease, and the pool's shared parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.learner.learner import Learner
from backend.rollout.engines.protocol import SamplingEngine
from backend.store.store import JobLease, ServiceStore
from backend.training.boards import Boards
from backend.training.job_control import JobControl
from backend.training.policies import PolicyDirectory
from backend.training.step_clock import StepClock
from tinkergym.wire import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One job at work."""

    lease: JobLease
    store: ServiceStore
    learner: Learner
    engine: SamplingEngine
    boards: Boards
    policies: PolicyDirectory
    control: JobControl
    clock: StepClock
    checkpoints_dir: Path
    """`<jobs_dir>/<job_id>/checkpoints`"""
    lease_seconds: float
    """Of an episode."""

    @property
    def job_id(self) -> str:
        """Also the id of the policy that the job trains."""
        return self.lease.job_id

    @property
    def spec(self) -> JobSpec:
        """What the user asked for."""
        return self.lease.spec

    @property
    def in_lockstep(self) -> bool:
        """Whether a step's episodes are sampled in common batches, and so played by one worker as a whole."""
        # A script plays one episode after the other: there is nothing to keep in step.
        return self.spec.deterministic and self.spec.rollout != "script"
