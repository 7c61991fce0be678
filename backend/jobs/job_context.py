"""A job loop's dependencies: its lease, and the pool's shared parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import JsonValue

from backend.episodes.boards import Boards
from backend.episodes.captured_tokens import CapturedTokens
from backend.jobs.job_control import JobControl
from backend.jobs.run_evidence import RunEvidence
from backend.jobs.step_clock import StepClock
from backend.learner.sequences import TokenLimits
from backend.policies.call_bell import CallBell
from backend.policies.trained_policy import TrainedPolicy
from backend.settings.served_models import DType
from backend.store.blobs import Blobs
from backend.store.store import JobLease, ServiceStore
from tinkergym.agent.sampler import Sampler
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.trajectory.outcomes import Memory

_PARITY_THRESHOLDS: dict[DType, float] = {"float32": 1e-3, "bfloat16": 2e-2}

SpecT_co = TypeVar("SpecT_co", bound=TrainingSpec, covariant=True)
"""The kind of job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(Generic[SpecT_co]):
    """A running job."""

    lease: JobLease
    spec: SpecT_co
    """The user's settings: the lease's own, or the part that a phase of the job uses."""
    store: ServiceStore
    policies: Mapping[str, TrainedPolicy]
    """The trained policies, by agent; the agent of a single policy is ""."""
    sampler: Sampler
    """Samples any policy that the tenant may name, on the job's base model."""
    limits: TokenLimits
    """Of the job's base model. A policy on another model has its own."""
    boards: Boards
    bell: CallBell
    """Rings when a call of a policy arrived or was done."""
    control: JobControl
    clock: StepClock
    files: Blobs
    """Files of the job."""
    all_files: Blobs
    """Files of all jobs, below their ids."""
    uploads: Blobs
    """Uploaded data."""
    lease_seconds: float
    """How long an episode stays with a worker that does not renew its lease."""
    client_place_seconds: float
    """Without its client for this long, the job gives up its place."""
    dtype: DType = "float32"
    """Number format of the pool."""
    memory: Memory = field(default_factory=dict)
    """What the job's algorithms remember from step to step; the loop updates it."""
    sleep_while_learning: bool = False
    """Whether the engine frees its memory while the job learns."""
    captured: CapturedTokens = field(default_factory=CapturedTokens)
    """The engine's completions for players of episodes."""
    evidence: RunEvidence = field(default_factory=RunEvidence)
    """For the run's certificate."""
    place: Mapping[str, JsonValue] = field(default_factory=dict)
    """Where the job runs: engine, device, number format, threads."""
    model_fingerprint: str = ""
    """Fingerprint of the job's base model."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.lease.job_id

    @property
    def policy(self) -> TrainedPolicy:
        """The policy of a job that trains one."""
        (policy,) = self.policies.values()
        return policy

    @property
    def other_limits(self) -> dict[str, TokenLimits]:
        """The limits of the other base models of the job, by the name of the seat's renderer."""
        return {
            self.spec.rendered_by(self.job_id, agent): policy.limits
            for agent, policy in self.policies.items()
            if self.spec.for_agent(agent).model != self.spec.model
        }

    @property
    def parity_threshold(self) -> float:
        """The allowed mean difference between learner's and engine's logprobs, in nats."""
        played: PlayedSpec | None = self.spec.played
        asked = played.parity_threshold if played else None
        return _PARITY_THRESHOLDS[self.dtype] if asked is None else asked

    @property
    def in_lockstep(self) -> bool:
        """Whether a step's episodes are sampled in common batches, and so played by one worker together."""
        # A script plays one episode after the other, so there is nothing to synchronize.
        spec: PlayedSpec | None = self.spec.played
        return spec is not None and spec.deterministic and spec.rollout != "script"
