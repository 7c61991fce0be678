"""Models that a pool serves in addition to its own, for jobs whose seats use several base models.

A guest is loaded for the first job that needs it, and unloaded after the last one. It has its own learner,
engine and policy directory; everything else is shared with the pool.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backend.engines.protocol import SamplingEngine
from backend.engines.spread.spread_engine import SpreadEngine
from backend.policies.early_requests import EarlyRequests
from backend.policies.policy_directory import PolicyDirectory
from backend.policies.pool_learner import PoolLearner
from tinkergym.schema.ids import PolicyRef

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A base model in this process, with everything that trains and samples its policies."""

    model: str
    engine: SamplingEngine
    learner: PoolLearner
    directory: PolicyDirectory
    early: EarlyRequests
    spread: SpreadEngine | None = None
    """The engine, if engine hosts may join it."""

    def close(self) -> None:
        """Free its memory."""
        self.engine.close()
        self.learner.close()


class GuestModels:
    """The guests of a pool, and the jobs that need them. Thread-safe."""

    def __init__(self, load: Callable[[str], ServedModel]) -> None:
        """Start empty; `load` loads a model."""
        self._load = load
        self._loading = threading.Lock()
        self._guests: dict[str, ServedModel] = {}
        self._needed: dict[str, set[str]] = {}
        """The jobs that need each model."""

    def take(self, models: Iterable[str], job_id: str) -> Mapping[str, ServedModel]:
        """Return the models that a job needs, all loaded; they stay until `give_back`.

        Raises:
            TinkerGymError: A model cannot be loaded; the job then holds none.
        """
        found: dict[str, ServedModel] = {}
        try:
            for model in models:
                # Two jobs that need a model must not load it twice.
                with self._loading:
                    if model not in self._guests:
                        _log.info("loading %s next to the pool's own model, for %s", model, job_id)
                        # Replaced as a whole, because `of_policy` reads it without the lock.
                        self._guests = {**self._guests, model: self._load(model)}
                    self._needed.setdefault(model, set()).add(job_id)
                    found[model] = self._guests[model]
        except BaseException:
            self.give_back(job_id)
            raise
        return found

    def give_back(self, job_id: str) -> None:
        """Record that a job has ended; models that no other job needs are unloaded."""
        with self._loading:
            for model, jobs in list(self._needed.items()):
                jobs.discard(job_id)
                if not jobs:
                    del self._needed[model]
                    gone = self._guests[model]
                    # Out of sight before it is closed, for `of_policy` looks without the lock.
                    self._guests = {name: one for name, one in self._guests.items() if name != model}
                    gone.close()

    def of_policy(self, policy: str) -> ServedModel | None:
        """Return the guest that samples a policy, by any of the policy's names; None if there is none."""
        ref = PolicyRef.find(policy)
        whose = policy if ref is None else ref.whose
        for guest in self._guests.values():
            if policy == guest.model or guest.directory.trained_by(whose) is not None:
                return guest
        return None

    def has(self, model: str) -> bool:
        """Return whether a model is loaded here."""
        return model in self._guests

    def close(self) -> None:
        """Unload all."""
        with self._loading:
            for guest in self._guests.values():
                guest.close()
            self._guests, self._needed = {}, {}
