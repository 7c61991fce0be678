"""Which policies a pool can sample: those that jobs train here, and ended ones, loaded when asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backend.rollout.engines.protocol import BASE_POLICY, SamplingEngine
from backend.weights import PolicyWeights
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.wire import SampleRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """The newest weights of a policy that no job loop here is training."""

    version: int
    weights: PolicyWeights
    from_base: bool = True
    """Whether its training began with the model itself, so that version 0 is the model."""


LoadPolicy = Callable[[str], StoredPolicy | None]
"""Reads the newest checkpoint of a job; None if there is none."""


class PolicyDirectory:
    """Turns the policy names of clients into what the engine has loaded."""

    def __init__(
        self, engine: SamplingEngine, *, model_names: Iterable[str], load: LoadPolicy, keep_idle: int
    ) -> None:
        """Serve `engine`; at most `keep_idle` policies stay loaded that are not being trained."""
        self._engine = engine
        self._model_names = frozenset(model_names)
        self._load = load
        self._keep_idle = keep_idle
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._not_from_base: set[str] = set()
        self._idle: OrderedDict[str, None] = OrderedDict()

    def hold(self, policy: str, *, from_base: bool = True) -> None:
        """A job loop publishes this policy itself from now on.

        Args:
            policy: Its id.
            from_base: Whether its training began with the model itself, so that version 0 is the model.
        """
        with self._lock:
            self._held.add(policy)
            if not from_base:
                self._not_from_base.add(policy)
            self._idle.pop(policy, None)

    def release(self, policy: str) -> None:
        """The job loop ended; its last version stays loaded until others push it out."""
        with self._lock:
            self._held.discard(policy)
            if policy in self._engine.loaded():
                self._became_idle(policy)

    def resolve(self, request: SampleRequest) -> SampleRequest:
        """Return the request as the engine wants it: a published policy.

        Which version is the newest is left to the engine: until it takes the request there may be another.

        Raises:
            NotFoundError: The policy is neither loaded nor stored.
            InvalidRequestError: A model's name with a version; only policies have such.
        """
        if request.policy in self._model_names:
            if request.policy_version:
                raise InvalidRequestError(
                    f"{request.policy!r} is a model, which has no version {request.policy_version}",
                    hint="leave it out, or name the job whose policy is meant",
                    field="policy_version",
                )
            return request.model_copy(update={"policy": BASE_POLICY, "policy_version": 0})
        version = self._engine.loaded().get(request.policy)
        if version is None:
            version = self._fetch(request.policy)
        elif request.policy in self._idle:
            with self._lock:
                if request.policy in self._idle:
                    self._idle.move_to_end(request.policy)
        if request.policy_version == 0 and version != 0 and request.policy not in self._not_from_base:
            # Version 0 is the untrained model whatever was published since.
            return request.model_copy(update={"policy": BASE_POLICY})
        return request

    def _fetch(self, policy: str) -> int:
        with self._lock:
            loaded = self._engine.loaded().get(policy)
            if loaded is not None:  # another request was faster
                return loaded
            stored = None if policy in self._held else self._load(policy)
            if stored is None:
                raise NotFoundError(
                    f"policy {policy!r} has no weights yet",
                    hint="sample it after its job has started, or after its first checkpoint",
                    field="policy",
                )
            if not stored.from_base:
                self._not_from_base.add(policy)
            self._engine.publish(policy, stored.version, stored.weights)
            self._became_idle(policy)
            return stored.version

    def _became_idle(self, policy: str) -> None:
        self._idle[policy] = None
        self._idle.move_to_end(policy)
        while len(self._idle) > self._keep_idle:
            oldest, _ = self._idle.popitem(last=False)
            self._engine.retire(oldest)
