"""The HTTP endpoint of an engine host, and the engine behind it.

Only the host's pool has its token. Requests arrive resolved: with the engine's name of a policy and a version
that this host has reported to hold.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import Response

from backend.engines.protocol import SamplingEngine
from backend.engines.spread.orders import Done, HeldVersion, PublishOrder, RetireOrder
from backend.engines.spread.weight_pull import WeightPull
from backend.errors import WeightsDamagedError
from backend.workers.worker_server import Handler, WorkerServer, in_thread, read_body, sampled
from tinkergym.agent.sampler import Deliver
from tinkergym.schema.sampling import SampleRequest

_THREADS = 64


class HostedEngine:
    """An engine whose weights come from elsewhere. Thread-safe."""

    def __init__(self, engine: SamplingEngine, pull: WeightPull) -> None:
        self.engine, self._pull = engine, pull
        self._held: dict[str, HeldVersion] = {}
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """A policy's versions are loaded one after the other."""
        self._lock = threading.Lock()

    def publish(self, order: PublishOrder) -> HeldVersion:
        """Fetch a version, check it, and load it; does nothing if it is loaded.

        Raises:
            WeightsUnavailableError: See `WeightPull.pull`. The version before stays loaded.
            WeightsDamagedError: See `WeightPull.pull`; or the engine was given other weights, and then the
                policy is no longer loaded.
        """
        wanted = HeldVersion(version=order.version, sha256=order.manifest.sha256)
        with self._turn(order.policy):
            if self._held.get(order.policy) == wanted:
                return wanted
            weights = self._pull.pull(order.policy, order.manifest).weights()
            # First: what fails halfway must not count as held.
            self._held.pop(order.policy, None)
            arrived = self.engine.publish(order.policy, order.version, weights, let_finish=order.let_finish)
            if arrived != wanted.sha256:
                self.engine.retire(order.policy)
                self._pull.forget(order.policy)
                raise WeightsDamagedError(
                    f"version {order.version} of {order.policy!r} has hash {wanted.sha256[:12]}, but the "
                    f"engine was given {arrived[:12]}",
                    hint="report this with the log",
                )
            self._held[order.policy] = wanted
            return wanted

    def retire(self, policy: str) -> Done:
        """Forget a policy."""
        with self._turn(policy):
            self._held.pop(policy, None)
            self._pull.forget(policy)
            self.engine.retire(policy)
        return Done()

    @property
    def held(self) -> dict[str, HeldVersion]:
        """What is loaded, by policy."""
        return dict(self._held)

    def sleep(self) -> Done:
        """Let the engine free memory, unless it has requests."""
        self.engine.sleep()
        return Done()

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver, together: bool) -> None:
        """Answer each request once."""
        (self.engine.submit_together if together else self.engine.submit)(requests, deliver)

    def _turn(self, policy: str) -> threading.Lock:
        with self._lock:
            return self._turns[policy]


class EngineEndpoint:
    """Serves a `HostedEngine` from a thread until closed."""

    def __init__(self, hosted: HostedEngine, url: str, token: str) -> None:
        """Listen at `url`, or at a free port for port 0; `self.url` then has the port."""
        self._hosted = hosted
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine-endpoint")
        handlers: dict[tuple[str, str], Handler] = {
            ("POST", "/sample"): self._sample,
            ("POST", "/engine/publish"): self._publish,
            ("POST", "/engine/retire"): self._retire,
            ("POST", "/engine/sleep"): self._sleep,
        }
        self._server = WorkerServer("engine-endpoint", url, token, handlers)
        self.url = self._server.url

    def close(self) -> None:
        """Stop listening and end requests in progress."""
        self._server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _sample(self, request: Request) -> Response:
        return await sampled(request, self._threads, self._hosted.sample)

    async def _publish(self, request: Request) -> Response:
        body = await request.body()
        return await in_thread(self._threads, lambda: self._hosted.publish(read_body(PublishOrder, body)))

    async def _retire(self, request: Request) -> Response:
        order = read_body(RetireOrder, await request.body())
        return await in_thread(self._threads, lambda: self._hosted.retire(order.policy))

    async def _sleep(self, _request: Request) -> Response:
        return await in_thread(self._threads, self._hosted.sleep)
