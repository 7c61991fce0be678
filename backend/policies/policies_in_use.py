"""Which policies have unanswered requests: they stay loaded until these are answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from backend.engines.protocol import PassedOn
from tinkergym.agent.sampler import Deliver
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest


class PoliciesInUse:
    """Counts the requests in progress, by the engine's name of the policy. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_policy: dict[str, set[Answering]] = {}

    def __contains__(self, policy: str) -> bool:
        with self._lock:
            # The engine drops the requests of a disconnected client without answering them.
            users = {one for one in self._by_policy.pop(policy, ()) if not one.gone}
            if users:
                self._by_policy[policy] = users
            return bool(users)

    def answering(self, deliver: Deliver) -> Answering:
        """Return a `deliver` that first frees each request's policy."""
        return Answering(self, deliver)

    def _begin(self, policy: str, one: Answering) -> None:
        with self._lock:
            self._by_policy.setdefault(policy, set()).add(one)

    def _end(self, policy: str, one: Answering) -> None:
        with self._lock:
            users = self._by_policy.get(policy, set())
            users.discard(one)
            if not users:
                self._by_policy.pop(policy, None)


class Answering(PassedOn):
    """Passes on the completions of one batch of requests."""

    def __init__(self, in_use: PoliciesInUse, deliver: Deliver) -> None:
        super().__init__(deliver)
        self._in_use = in_use
        # Taken before that of `in_use`, never while holding it.
        self._lock = threading.Lock()
        self._waiting: dict[str, set[str]] = {}
        """The ids of unanswered requests, by policy."""

    def takes(self, resolved: SampleRequest) -> None:
        """Record a request that is about to be passed to the engine."""
        with self._lock:
            self._waiting.setdefault(resolved.policy, set()).add(resolved.request_id)
            self._in_use._begin(resolved.policy, self)

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        """Free the policies of answered requests, and pass on the completions."""
        # Freed before they are passed on: a caller with all of its answers may drop the policy immediately.
        answered = {answer.request_id for answer in answers}
        with self._lock:
            for policy in list(self._waiting):
                self._waiting[policy] -= answered
                if not self._waiting[policy]:
                    del self._waiting[policy]
                    self._in_use._end(policy, self)
        self._deliver(answers)
