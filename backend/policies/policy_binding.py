"""What binds one policy to the place where it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.engines.protocol import SamplingEngine
from backend.learner.learner import Learner
from backend.policies.early_requests import EarlyRequests
from backend.policies.policy_directory import PolicyDirectory
from backend.policies.pool_learner import AnyLearner
from backend.store.blobs import Blobs, checkpoint_key
from backend.store.references import ReferredPolicy
from backend.store.store import JobLease, ServiceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """Shared by all policies of a pool."""

    store: ServiceStore
    job_files: Blobs
    """Files of all jobs, below their ids."""
    engine: SamplingEngine
    directory: PolicyDirectory
    early: EarlyRequests
    open_model: Callable[[str], Learner]
    """Loads a model other than the pool's, for a single job."""

    def checkpoint(self, found: ReferredPolicy, *, field: str = "policy") -> Path:
        """Return a local folder with the checkpoint that a reference names.

        Raises:
            NotFoundError: It is not stored.
            BlobsUnavailableError: Its files cannot be read now.
        """
        view = found.checkpoint(field=field)
        return self.job_files.local(checkpoint_key(found.job_id, found.agent, view))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBinding:
    """One policy of one job in one pool."""

    policy_id: str
    """Its name in learner, engine and directory."""
    agent: str
    """The agent whose policy it is; empty if the job trains one."""
    lease: JobLease
    """The lease; every write for the policy carries it."""
    files: Blobs
    """Files of its job."""
    learner: AnyLearner
    pool: PoolParts
