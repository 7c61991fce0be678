"""What binds one policy to the place where it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backend.engines.protocol import SamplingEngine
from backend.learner.learner import Learner
from backend.policies.directory import PolicyDirectory
from backend.policies.early_requests import EarlyRequests
from backend.policies.pool_learner import AnyLearner
from backend.store.blobs import Blobs
from backend.store.store import JobLease, ServiceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """What all policies of a pool share."""

    store: ServiceStore
    engine: SamplingEngine
    directory: PolicyDirectory
    early: EarlyRequests
    open_model: Callable[[str], Learner]
    """Loads another model than the pool's, for one job alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One policy of one job in one pool."""

    policy_id: str
    """The name under which learner, engine and directory hold it."""
    agent: str
    """Which of the job's policies it is; empty where the job trains one."""
    lease: JobLease
    """Every write for the policy carries it."""
    files: Blobs
    """What its job keeps as files."""
    learner: AnyLearner
    pool: PoolParts

    @property
    def checkpoints(self) -> Blobs:
        """The policy's checkpoints, a folder each."""
        return self.files.below(f"checkpoints/{self.agent}")
