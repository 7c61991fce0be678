"""Sampling requests for a policy version that is not published yet.

While the policy learns, workers may lease the next step's episodes, reset their environments and render the
first prompts. Their requests wait here until the version is published: nothing is sampled earlier, and no
step begins with the engine waiting for environments.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from backend.engines.failures import failure, version_gone
from backend.engines.protocol import SamplingEngine
from tinkergym.agent.sampler import Deliver
from tinkergym.schema.sampling import SampleRequest


class EarlyRequests:
    """Held requests, by policy. Thread-safe."""

    def __init__(self, engine: SamplingEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._awaited: dict[str, int] = {}
        self._waiting: dict[str, list[tuple[SampleRequest, Deliver]]] = {}

    def expect(self, policy: str, version: int) -> None:
        """From now on hold requests for this version, until `published` or `forget`."""
        with self._lock:
            self._awaited[policy] = version

    def keep(self, request: SampleRequest, deliver: Deliver) -> bool:
        """Hold a request if it came too early; return whether it did."""
        with self._lock:
            if request.policy_version is None or self._awaited.get(request.policy) != request.policy_version:
                return False
            self._waiting.setdefault(request.policy, []).append((request, deliver))
            return True

    def published(self, policy: str) -> None:
        """Pass held requests to the engine, which now has the version."""
        batches: dict[Deliver, list[SampleRequest]] = {}
        for request, deliver in self._take(policy):
            batches.setdefault(deliver, []).append(request)
        # Without the lock: the engine may call back in this thread.
        for deliver, requests in batches.items():
            self._engine.submit(requests, deliver)

    def forget(self, policy: str) -> None:
        """Answer held requests with an error: the version will not be published."""
        for request, deliver in self._take(policy):
            deliver([failure(request, version_gone(request))])

    def _take(self, policy: str) -> Sequence[tuple[SampleRequest, Deliver]]:
        with self._lock:
            # Both in one hold: a request is either kept until now, or goes to the engine by itself.
            self._awaited.pop(policy, None)
            return self._waiting.pop(policy, [])
