"""Which tokens the engine returned to whom: digests of completions, by the lease of their episode.

Submitted results are compared with them. Kept in memory: an episode that outlives this process is played
again from its start, under a new lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from backend.engines.protocol import PassedOn
from tinkergym.agent.sampler import Deliver
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.ledger import NO_DIGEST, completion_digest

_MOST_LEASES = 20_000
"""The number of kept entries, newest first: an episode may be submitted again until it is known to be
stored."""


class CapturedTokens:
    """Digests of the engine's completions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_lease: BoundedDict[str, set[bytes]] = BoundedDict(_MOST_LEASES)
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds spent here; increases monotonically."""
        return self._seconds

    def watching(self, deliver: Deliver, requests: Sequence[SampleRequest]) -> Deliver:
        """Return a `deliver` that also records completions for episodes."""
        leases = {request.request_id: lease for request in requests if (lease := request.seat.lease)}
        return _Watching(self, deliver, leases) if leases else deliver

    def note(self, answers: Sequence[Completion | SampleFailure], leases: Mapping[str, str]) -> None:
        """Record completions with the lease of each request."""
        with self._timed():
            found = [
                (leases[answer.request_id], completion_digest(answer.policy_version, answer.token_ids))
                for answer in answers
                if isinstance(answer, Completion) and answer.request_id in leases
            ]
            with self._lock:
                for lease, digest in found:
                    self._by_lease.setdefault(lease, set()).add(digest)

    def of(self, result: EpisodeResult) -> bytes:
        """Return the digests of an episode's turns, by trajectory.

        A turn whose tokens the engine is not known to have returned has `NO_DIGEST`.
        """
        with self._timed():
            with self._lock:
                known = frozenset(self._by_lease.get(result.lease_id, ()))
            digests = [
                completion_digest(
                    turn.policy_version, trajectory.segments[turn.segment].token_ids[turn.start : turn.end]
                )
                for trajectory in result.trajectories
                for turn in trajectory.turns
            ]
            return b"".join(digest if digest in known else NO_DIGEST for digest in digests)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.thread_time()
        try:
            yield
        finally:
            self._seconds += time.thread_time() - begun


class _Watching(PassedOn):
    """Records completions before passing them on, because a worker may submit before this returns."""

    def __init__(self, captured: CapturedTokens, deliver: Deliver, leases: Mapping[str, str]) -> None:
        super().__init__(deliver)
        self._captured, self._leases = captured, leases

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        self._captured.note(answers, self._leases)
        self._deliver(answers)
