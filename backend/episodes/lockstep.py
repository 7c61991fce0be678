"""Lockstep sampling: a deterministic job's requests wait for each other and run as one batch in fixed order.

On a CPU the last bit of a matrix product depends on its batch, so equal bits need equal batches: one per
turn, with every unfinished episode, sorted by index.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from backend.engines.protocol import SamplingEngine
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import ConflictError, ServiceUnavailableError, TinkerGymError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25
"""How often the gate checks by itself whether an episode ended without a further request."""


@dataclass(slots=True)
class _Pending:
    request: SampleRequest
    delivers: list[Deliver] = field(default_factory=list)


class _Receiver:
    """Receives a batch; implements `Deliver`."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self._is_gone = is_gone
        self.answers: Future[Sequence[Completion | SampleFailure]] = Future()

    @property
    def gone(self) -> bool:
        """See `Deliver`."""
        return self._is_gone()

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        self.answers.set_result(answers)


class LockstepGate:
    """Holds one job's sampling requests until every unfinished episode has one."""

    def __init__(
        self,
        engine: SamplingEngine,
        playing: Callable[[], Sequence[str]],
        *,
        owner: str = "",
        one_by_one: bool = False,
    ) -> None:
        """Sample on `engine`.

        Args:
            engine: Runs each batch alone.
            playing: The leases of unfinished episodes, in index order.
            owner: The tenant, as in the sessions of its other requests.
            one_by_one: Requests do not wait for others: a script plays one episode after the other.
        """
        self._engine, self._owner = engine, owner
        self._playing = playing
        self._one_by_one = one_by_one
        self._changed = threading.Condition()
        self._pending: dict[str, _Pending] = {}
        self._computed: dict[str, _Pending] = {}
        """The batch that the engine is computing."""
        self._answered: dict[str, tuple[SampleRequest, Completion]] = {}
        """Each lease's last request and its completion, which may have been lost on its way."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lockstep-gate", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered once through `deliver` when its turn comes."""
        with self._changed:
            if self._closed:
                _fail(requests, deliver, ServiceUnavailableError("the job stopped sampling"))
                return
            known = [answer for request in requests if (answer := self._take_up(request, deliver))]
            self._changed.notify_all()
        if known:
            deliver(known)

    def _take_up(self, request: SampleRequest, deliver: Deliver) -> Completion | None:
        """Queue a request; one that is repeated after a lost connection is sampled once and answered twice.

        Sampled again, it would join another turn's batch, which would then differ from that of an undisturbed
        run. Returns its completion if it is already known.
        """
        lease_id = request.seat.lease
        asked, answer = self._answered.get(lease_id, (None, None))
        if asked == request:
            return answer
        now = self._computed.get(lease_id)
        entry = now if now is not None and now.request == request else None
        (entry or self._pending.setdefault(lease_id, _Pending(request))).delivers.append(deliver)
        return None

    def check_again(self) -> None:
        """Check again which episodes are unfinished, because a result arrived."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop; pending requests get an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        # Without the lock: the thread has ended, and `submit` adds nothing any more.
        self._refuse(self._pending, ServiceUnavailableError("the job stopped sampling"))

    def _run(self) -> None:
        while not self._closed:
            batch = self._next_batch()
            if batch:
                self._sample(batch)
            with self._changed:
                if not self._closed:
                    # A turn that became complete during the last batch has notified no thread.
                    self._changed.wait(0.0 if self._ready() else _LOOK_SECONDS)

    def _ready(self) -> bool:
        if self._one_by_one:
            return bool(self._pending)
        leases = self._playing()
        return bool(leases) and all(lease_id in self._pending for lease_id in leases)

    def _next_batch(self) -> list[_Pending]:
        """Take the turn if it is complete; refuse requests with a void lease."""
        with self._changed:
            leases = self._playing()
            known = set(leases)
            # A request is repeated only while its episode is played.
            self._answered = {key: value for key, value in self._answered.items() if key in known}
            if self._one_by_one:
                first = list(self._pending)[:1]
                self._computed = {key: self._pending.pop(key) for key in first}
                return list(self._computed.values())
            orphans = {key: self._pending.pop(key) for key in list(self._pending) if key not in known}
            complete = bool(leases) and all(lease_id in self._pending for lease_id in leases)
            # In the order of the leases, not of arrival: the rows' order may change the bits.
            self._computed = {key: self._pending.pop(key) for key in leases} if complete else {}
            batch = list(self._computed.values())
        self._refuse(orphans, ConflictError("the episode's lease is void", hint="stop playing it"))
        return batch

    def _sample(self, batch: list[_Pending]) -> None:
        """Sample each policy's requests in a separate batch.

        So a policy's tokens do not depend on the other players: next to another trained policy it samples the
        same bits as against a replay of that one.
        """
        by_policy: dict[str, list[_Pending]] = {}
        for pending in batch:
            by_policy.setdefault(pending.request.policy, []).append(pending)
        for policy in sorted(by_policy):
            self._sample_one(by_policy[policy])

    def _sample_one(self, batch: list[_Pending]) -> None:
        answers: Sequence[Completion | SampleFailure]
        try:
            answers = self._together([pending.request for pending in batch])
        except Exception as error:
            _log.exception("lockstep sampling failed")
            failure = error if isinstance(error, TinkerGymError) else TinkerGymError(f"sampling: {error!r}")
            answers = [_failure(pending.request, failure) for pending in batch]
        together: dict[Deliver, list[Completion | SampleFailure]] = {}
        with self._changed:
            for pending in batch:
                self._computed.pop(pending.request.seat.lease, None)
            for pending, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Completion):
                    lease_id = pending.request.seat.lease
                    # Known before it is delivered: a connection that breaks meanwhile asks again.
                    self._answered[lease_id] = pending.request, answer
                for deliver in pending.delivers:
                    together.setdefault(deliver, []).append(answer)
        # Without the lock: who receives an answer may submit the next request at once.
        for deliver, some in together.items():
            deliver(some)

    def _together(self, requests: Sequence[SampleRequest]) -> Sequence[Completion | SampleFailure]:
        """Sample requests as one batch, until the gate closes."""
        if self._owner:
            requests = [request.owned_by(self._owner) for request in requests]
        receiver = _Receiver(lambda: self._closed)
        self._engine.submit_together(requests, receiver)
        answers = receiver.answers.result()
        if not self._closed:
            return answers
        stopped = ServiceUnavailableError("the job stopped sampling")
        return [
            answer if isinstance(answer, Completion) else _failure(request, stopped)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _refuse(self, pending: dict[str, _Pending], error: TinkerGymError) -> None:
        for entry in pending.values():
            for deliver in entry.delivers:
                _fail([entry.request], deliver, error)


def _failure(request: SampleRequest, error: TinkerGymError) -> SampleFailure:
    return SampleFailure(request_id=request.request_id, error=ErrorView.model_validate(error.to_wire()))


def _fail(requests: Sequence[SampleRequest], deliver: Deliver, error: TinkerGymError) -> None:
    deliver([_failure(request, error) for request in requests])
