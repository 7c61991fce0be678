"""One engine out of several: the pool's own, and those of its engine hosts on this or other machines.

Everything that uses an engine uses this one instead. Batches that must be reproducible bit by bit
(`generate_together`, `submit_together`) and completions that are sent in parts stay on the pool's own engine,
whatever joins or leaves; all other requests are spread, see `replica_choice`. A replica answers requests only
for versions that it reported to hold with the published hash. What a lost replica has not answered is asked
again elsewhere: a request names its seed, so sampling it again is harmless, and only the first answer counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from backend.compute.weights import PolicyWeights
from backend.engines.protocol import PassedOn, SamplingEngine
from backend.engines.spread.orders import EngineJoins, PublishOrder, WantedPieces
from backend.engines.spread.replica import AskedBatch, Replica
from backend.engines.spread.replica_choice import ReplicaChoice
from backend.engines.spread.version_orders import VersionOrders, held_by
from backend.engines.spread.weight_source import WeightSource
from backend.network.worker_calls import WorkerAddress, WorkerCalls
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import PolicyVersionGoneError, ServiceUnavailableError, TinkerGymError, from_wire
from tinkergym.schema.sampling import (
    Completion,
    SampleFailure,
    SampleRequest,
    read_answer,
)

_log = logging.getLogger(__name__)

_OWN = "own"
"""The pool's own engine among the replicas."""
_WATCH_SECONDS = 0.5
"""How often callers that left and replicas that fell silent are looked for."""
_SILENCE_SECONDS = 600.0
"""How long an answer may take; a replica that dies breaks the connection, and one that hangs is noticed by
its missing heartbeat."""
_SLEEP_SECONDS = 30.0


class SpreadEngine:
    """Implements `SamplingEngine`."""

    def __init__(
        self,
        own: SamplingEngine,
        *,
        folder: Path,
        silent_after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with the pool's own engine alone; `join` adds replicas.

        Args:
            own: The engine in this process. It is closed with this one.
            folder: On whose file system published weights are kept for the replicas, in files without names.
            silent_after: Seconds without a heartbeat after which a replica counts as lost.
            clock: Monotonic seconds.
        """
        self._own, self._silent_after, self._clock = own, silent_after, clock
        self._source = WeightSource(folder)
        self._calls = WorkerCalls()
        self._changed = threading.Condition()
        """Guards all below; notified when a replica holds a version, or is lost."""
        self._replicas: dict[str, Replica] = {}
        self._orders: dict[str, PublishOrder] = {}
        """The published version of each policy."""
        self._versions = VersionOrders(
            self._changed, self._orders, self._calls, is_here=self._is_here, drop=self._drop
        )
        self._choice = ReplicaChoice()
        self._own_asked: set[_CountedDeliver] = set()
        self._calls.start(self._watch_replicas())

    # --- what the pool's own engine says ---

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._own.context_length

    @property
    def busy_seconds(self) -> float:
        """Seconds that the pool's own engine computed; the replicas compute in the same time."""
        return self._own.busy_seconds

    def loaded(self) -> dict[str, int]:
        """Published policies and their newest versions."""
        return self._own.loaded()

    @property
    def asleep(self) -> bool:
        """Whether the pool's own engine sleeps."""
        return self._own.asleep

    def sleep(self) -> bool:
        """Let all engines free memory, and wait until they have; returns whether the pool's own sleeps.

        An engine host may share its device with a rank of the learner, which needs the memory next.
        """
        told = [
            self._calls.start(
                self._calls.posted(replica.address, "/engine/sleep", "{}", silence_seconds=_SLEEP_SECONDS)
            )
            for replica in self.replicas()
        ]
        sleeps = self._own.sleep()
        for answer in told:
            with contextlib.suppress(TinkerGymError):  # One that is lost needs no memory.
                answer.result()
        return sleeps

    def wake(self) -> None:
        """Start to allocate the memory again; replicas do so with their next request."""
        self._own.wake()

    def generate_together(self, requests: Sequence[SampleRequest]) -> list[Completion | SampleFailure]:
        """Sample on the pool's own engine; bitwise reproducible, whatever replicas there are."""
        return self._own.generate_together(requests)

    def submit_together(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Like `generate_together`, without waiting."""
        self._own.submit_together(requests, deliver)

    # --- replicas ---

    def join(self, joins: EngineJoins) -> None:
        """Add an engine host, or note that it lives."""
        with self._changed:
            known = self._replicas.get(joins.engine_id)
            if known is not None:
                known.seen_at = self._clock()
                return
            address = WorkerAddress(joins.url, joins.token)
            replica = Replica(joins.engine_id, address, self._clock(), held=dict(joins.held))
            self._replicas[joins.engine_id] = replica
            # Also those that only it still holds: it is told to retire them.
            policies = list(dict.fromkeys([*self._orders, *joins.held]))
            replica.is_behind = bool(policies)
        _log.info("engine host %s joined at %s", joins.engine_id, joins.url)
        for policy in policies:
            self._versions.bring(replica, policy)

    def wait_until_held(self, policy: str, version: int | None, seconds: float) -> bool:
        """Wait until all engine hosts hold a version (None: no version); returns whether they do."""

        def is_held() -> bool:
            held = [replica.held.get(policy) for replica in self._replicas.values()]
            return all((one and one.version) == version for one in held)

        with self._changed:
            return self._changed.wait_for(is_held, seconds)

    def replicas(self) -> list[Replica]:
        """Return the engine hosts that are here."""
        with self._changed:
            return list(self._replicas.values())

    def read_weights(self, wanted: WantedPieces) -> bytes:
        """Return pieces of the published weights."""
        return self._source.read(wanted.pieces)

    def publish(self, policy: str, version: int, weights: PolicyWeights, *, let_finish: bool = False) -> str:
        """Publish to all engines; replicas that are up to date are waited for, up to a limit.

        A replica that is late is not asked for the policy before it holds the version.
        """
        # The own engine first: it answers for the version even if every replica is lost.
        sha256 = self._own.publish(policy, version, weights, let_finish=let_finish)
        try:
            manifest = self._source.offer(policy, weights, sha256)
        except OSError as error:
            _log.error("version %d of %s stays on the pool's own engine: %s", version, policy, error)
            with self._changed:
                self._orders.pop(policy, None)
            if not let_finish:
                self._refuse_older(policy)
            return sha256
        order = PublishOrder(policy=policy, version=version, manifest=manifest, let_finish=let_finish)
        with self._changed:
            self._orders[policy] = order
            replicas = list(self._replicas.values())
            waited_for = [replica for replica in replicas if not replica.is_behind]
        # After the new order: no request that comes now is still sent with the older version.
        if not let_finish:
            self._refuse_older(policy)
        for replica in replicas:
            self._versions.bring(replica, policy)
        self._versions.wait_for(waited_for, policy)
        return sha256

    def retire(self, policy: str) -> None:
        """Remove a policy from all engines."""
        self._own.retire(policy)
        self._source.withdraw(policy)
        with self._changed:
            self._orders.pop(policy, None)
            replicas = list(self._replicas.values())
        for replica in replicas:
            self._versions.bring(replica, policy)

    # --- requests ---

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Spread requests; each is answered exactly once through `deliver`."""
        own: list[SampleRequest] = []
        batches: list[tuple[Replica, AskedBatch]] = []
        with self._changed:
            parts: dict[str, list[tuple[SampleRequest, int]]] = {}
            for request in requests:
                engine_id, version = self._chosen(request, parts, len(own))
                if engine_id == _OWN:
                    own.append(request)
                else:
                    parts.setdefault(engine_id, []).append((request, version))
            for engine_id, part in parts.items():
                batch = AskedBatch([one for one, _ in part], [version for _, version in part], deliver)
                self._replicas[engine_id].asked.add(batch)
                batches.append((self._replicas[engine_id], batch))
        for replica, batch in batches:
            self._send(replica, batch)
        if own:
            self._ask_own(own, deliver)

    def close(self) -> None:
        """Stop; queued requests fail with ServiceUnavailableError."""
        with self._changed:
            self._replicas.clear()
        self._own.close()
        self._calls.close()

    def _chosen(
        self,
        request: SampleRequest,
        parts: dict[str, list[tuple[SampleRequest, int]]],
        own: int,
    ) -> tuple[str, int]:
        """Return the engine for a request, and the version that it will use there. Needs the lock."""
        order = self._orders.get(request.policy)
        newest = None if order is None else held_by(order)
        loads = {_OWN: own + sum(one.unanswered for one in self._own_asked if not one.gone)}
        versions: dict[str, int] = {}
        # A completion that is sent in parts is not asked again in the middle: it stays here.
        for engine_id, replica in ({} if request.stream else self._replicas).items():
            version = replica.version_of(request, newest)
            if version is not None:
                versions[engine_id] = version
                loads[engine_id] = replica.unanswered + len(parts.get(engine_id, ()))
        chosen = _OWN if len(loads) == 1 else self._choice.choose(request, loads)
        return chosen, versions.get(chosen, 0)

    def _ask_own(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        counted = _CountedDeliver(deliver, len(requests), self._own_answered)
        with self._changed:
            self._own_asked.add(counted)
        self._own.submit(requests, counted)

    def _own_answered(self, counted: _CountedDeliver) -> None:
        with self._changed:
            self._own_asked.discard(counted)

    def _send(self, replica: Replica, batch: AskedBatch) -> None:
        batch.sending = self._calls.start(self._ask(replica, batch))
        # Not in the coroutine: one that is cancelled before it starts runs none of its code.
        batch.sending.add_done_callback(lambda sent: self._settle(replica, batch, sent))
        with self._changed:
            # If the replica was lost between its choice and this call, nothing was cancelled then: without
            # the cancel below its requests would never be sent elsewhere.
            is_here = self._is_here(replica)
        if not is_here:
            batch.sending.cancel()

    async def _ask(self, replica: Replica, batch: AskedBatch) -> None:
        path, silence = "/sample", _SILENCE_SECONDS
        async for line in self._calls.lines(replica.address, path, batch.body(), silence_seconds=silence):
            self._answered(batch, read_answer(line))

    def _settle(self, replica: Replica, batch: AskedBatch, sent: Future[None]) -> None:
        """Ask elsewhere what a replica has left unanswered at the end of a call."""
        with self._changed:
            replica.asked.discard(batch)
        rest = batch.take_rest()
        if not rest or batch.is_gone:
            return
        error = None if sent.cancelled() else sent.exception()
        if error is None or isinstance(error, ServiceUnavailableError):
            self._drop(replica, "its connection broke")
            self.submit(rest, batch.deliver)
        else:
            _log.warning("engine host %s refused requests: %s", replica.engine_id, error)
            self._ask_own(rest, batch.deliver)

    def _answered(self, batch: AskedBatch, answer: Completion | SampleFailure) -> None:
        taken = batch.take(answer)
        if taken is None:
            return
        request, answer = taken
        if isinstance(answer, SampleFailure):
            error = from_wire(answer.error.model_dump())
            if isinstance(error, PolicyVersionGoneError | ServiceUnavailableError):
                self._ask_own([request], batch.deliver)  # It has the version, or knows that it is gone.
                return
        batch.deliver([answer])

    def _refuse_older(self, policy: str) -> None:
        """Answer what replicas have not answered for this policy: its version is replaced."""
        with self._changed:
            batches = [batch for replica in self._replicas.values() for batch in replica.asked]
        for batch in batches:
            batch.refuse(policy)

    # --- replicas that are lost, in the thread of the calls ---

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.get(replica.engine_id) is replica

    def _drop(self, replica: Replica, why: str) -> None:
        with self._changed:
            if not self._is_here(replica):
                return
            # First: one that joins again must not use these connections.
            self._calls.start(self._calls.forget(replica.address))
            del self._replicas[replica.engine_id]
            asked = list(replica.asked)
            self._changed.notify_all()
        _log.warning("engine host %s is lost: %s", replica.engine_id, why)
        for batch in asked:
            batch.cancel()  # Then `_settle` asks the rest elsewhere.

    async def _watch_replicas(self) -> None:
        """Notice replicas that are silent, and callers that left."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for replica in self.replicas():
                if self._clock() - replica.seen_at > self._silent_after:
                    self._drop(replica, "it is silent")
                with self._changed:
                    gone = [batch for batch in replica.asked if batch.is_gone]
                for batch in gone:
                    batch.cancel()
            with self._changed:
                self._own_asked = {one for one in self._own_asked if not one.gone}


class _CountedDeliver(PassedOn):
    """Counts the answers of the pool's own engine to one caller; implements `Deliver`."""

    def __init__(
        self, deliver: Deliver, unanswered: int, answered: Callable[[_CountedDeliver], None]
    ) -> None:
        super().__init__(deliver)
        self.unanswered, self._answered = unanswered, answered

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        self.unanswered -= len(answers)
        if self.unanswered <= 0:
            self._answered(self)
        self._deliver(answers)
