"""An engine host as its pool sees it, and the requests that it has not answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from backend.engines.failures import failure, version_gone
from backend.engines.protocol import BASE_POLICY
from backend.engines.spread.orders import HeldVersion
from backend.network.worker_calls import WorkerAddress
from tinkergym.agent.sampler import Deliver, has_gone
from tinkergym.schema.sampling import Completion, SampleBatch, SampleFailure, SampleRequest


class AskedBatch:
    """Requests of one caller that were sent to a replica in one call. Thread-safe.

    Each leaves it once: as an answer, or to be asked again, or refused. On the way each has its own id,
    whatever ids the caller has chosen.
    """

    def __init__(self, requests: Sequence[SampleRequest], versions: Sequence[int], deliver: Deliver) -> None:
        """Pin each request to the version that the replica holds."""
        self.deliver, self._versions = deliver, versions
        self._lock = threading.Lock()
        self._waiting = {str(number): request for number, request in enumerate(requests)}
        self.sending: Future[None] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the caller has disconnected."""
        return has_gone(self.deliver)

    def body(self) -> str:
        """Return the body of the call."""
        with self._lock:
            waiting = dict(self._waiting)
        return SampleBatch(
            requests=[
                request.model_copy(update={"request_id": key, "policy_version": self._versions[int(key)]})
                for key, request in waiting.items()
            ]
        ).model_dump_json(exclude_defaults=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def take(
        self, answer: Completion | SampleFailure
    ) -> tuple[SampleRequest, Completion | SampleFailure] | None:
        """Return the request of an answer, and the answer with its id; None if it is no longer waited for."""
        with self._lock:
            request = self._waiting.pop(answer.request_id, None)
        if request is None:
            return None
        return request, answer.model_copy(update={"request_id": request.request_id})

    def cancel(self) -> None:
        """End the call; what it leaves unanswered is taken elsewhere."""
        if self.sending is not None:
            self.sending.cancel()

    def refuse(self, policy: str) -> None:
        """Answer what is unanswered for a policy, whose version is replaced."""
        older = self.take_rest(policy)
        if older:
            self.deliver([failure(request, version_gone(request)) for request in older])

    def take_rest(self, policy: str | None = None) -> list[SampleRequest]:
        """Return the unanswered requests, of one policy or all; they are no longer waited for."""
        with self._lock:
            keys = [key for key, request in self._waiting.items() if policy in (None, request.policy)]
            return [self._waiting.pop(key) for key in keys]


@dataclass(eq=False, slots=True)
class Replica:
    """An engine host that has joined. Its fields are guarded by the lock of `SpreadEngine`."""

    engine_id: str
    address: WorkerAddress
    seen_at: float
    """When it was last heard of, in monotonic seconds."""
    held: dict[str, HeldVersion] = field(default_factory=dict)
    """What it has loaded, by policy."""
    bringing: set[str] = field(default_factory=set)
    """Policies that it is being brought up to date with."""
    is_behind: bool = True
    """Whether it lacks something that it was not waited for; a publish does not wait for it then."""
    asked: set[AskedBatch] = field(default_factory=set)

    @property
    def unanswered(self) -> int:
        """How many requests it has not answered, of callers that still wait."""
        return sum(len(batch) for batch in self.asked if not batch.is_gone)

    def version_of(self, request: SampleRequest, newest: HeldVersion | None) -> int | None:
        """Return the version with which it can answer a request; None if it cannot.

        Args:
            request: The request.
            newest: The published version of its policy.
        """
        if request.policy == BASE_POLICY:
            return 0 if request.policy_version in (None, 0) else None
        held = self.held.get(request.policy)
        if held is None or held != newest or request.policy_version not in (None, held.version):
            return None
        return held.version
