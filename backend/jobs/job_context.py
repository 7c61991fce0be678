"""What a job loop works with: its lease, and the pool's shared parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import JsonValue

from backend.config import DType
from backend.episodes.boards import Boards
from backend.episodes.captured import CapturedTokens
from backend.jobs.job_control import JobControl
from backend.jobs.run_facts import RunNotes
from backend.jobs.running_baselines import RunningBaselines
from backend.jobs.step_clock import StepClock
from backend.policies.call_bell import CallBell
from backend.policies.trained_policy import TrainedPolicy
from backend.store.blobs import Blobs
from backend.store.store import JobLease, ServiceStore
from tinkergym.schema.job_spec import PlayedSpec, TrainingSpec

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
    policies: Mapping[str, TrainedPolicy]
    """What the job trains, by agent; the agent of a single policy is empty."""
    boards: Boards
    bell: CallBell
    """Rings when a call of a policy came or was done."""
    control: JobControl
    clock: StepClock
    files: Blobs
    """What the job keeps as files."""
    all_files: Blobs
    """What all jobs keep, below their ids."""
    uploads: Blobs
    """What clients uploaded."""
    lease_seconds: float
    """Of an episode."""
    client_place_seconds: float
    """After so much silence of its client the job gives its place up."""
    dtype: DType = "float32"
    """In which the pool computes."""
    baselines: RunningBaselines = field(default_factory=RunningBaselines)
    """What was earned before at each seat; the loop keeps it up to date."""
    sleep_while_learning: bool = False
    """Whether the engine gives its memory to the learner meanwhile."""
    captured: CapturedTokens = field(default_factory=CapturedTokens)
    """What the engine returned to the players of episodes."""
    notes: RunNotes = field(default_factory=RunNotes)
    """For the run's certificate."""
    place: Mapping[str, JsonValue] = field(default_factory=dict)
    """Where the job runs: engine, device, number format, threads."""

    @property
    def job_id(self) -> str:
        """Which job."""
        return self.lease.job_id

    @property
    def policy(self) -> TrainedPolicy:
        """The policy of a job that trains one."""
        (policy,) = self.policies.values()
        return policy

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
