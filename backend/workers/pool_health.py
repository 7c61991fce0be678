"""How a pool shows that it lives, keeps its leases, and frees memory while it is idle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from backend.workers.heartbeat import Heartbeat, Pulse
from backend.workers.shared_parts import SharedParts
from tinkergym.errors import TinkerGymError

_log = logging.getLogger(__name__)


class Rest:
    """Reports once, after some idle time, that it is time to rest; the next work starts a new period."""

    def __init__(self, after_seconds: float, now: float) -> None:
        """Start waiting; all times are seconds on one monotonic clock."""
        self._after_seconds = after_seconds
        self._worked_at = now
        self.resting = False

    def worked(self, now: float) -> None:
        """Record that the pool has, or just had, work."""
        self._worked_at, self.resting = now, False

    def is_due(self, now: float) -> bool:
        """Whether to rest now: true once, until the pool has worked again."""
        if self.resting or now - self._worked_at < self._after_seconds:
            return False
        self.resting = True
        return True


class PoolHealth:
    """The pool is known to the store from its creation until `close`.

    While it lives, a heartbeat renews its jobs' leases and touches its row. A pool that samples without a job
    asks to be kept. One without either for `pool_rest_seconds` gives memory back, once until it works again.
    """

    def __init__(self, parts: SharedParts, pool_id: str, pulses: Mapping[str, Pulse]) -> None:
        """Start; `pulses` are the running jobs, and may change."""
        self._parts, self._pool_id, self._pulses = parts, pool_id, pulses
        config = parts.config
        self._sampled = False
        self._rest = Rest(config.pool_rest_seconds, time.monotonic())
        self._heartbeat = Heartbeat(
            parts.store,
            lambda: dict(pulses),
            show_life=self._show_life,
            lease_seconds=config.lease_seconds,
            heartbeat_seconds=config.heartbeat_seconds,
        )

    def start(self, url: str, token: str) -> None:
        """Tell the store where the pool listens, and begin to beat."""
        model = self._parts.own.model
        self._parts.store.register_pool(self._pool_id, model, url, token, time.time())
        self._heartbeat.start()

    def note_sampling(self) -> None:
        """Record that a client samples, possibly without a job."""
        self._sampled = True

    def close(self) -> None:
        """Stop; leases are no longer renewed."""
        self._heartbeat.close()

    def _show_life(self, now: float) -> None:
        store = self._parts.store
        store.touch_pool(self._pool_id, now)
        if self._sampled:
            self._sampled = False
            # A client samples without a job: the pool is still needed.
            store.want_pool(self._parts.own.model, now)
            self._rest.worked(time.monotonic())
        if self._pulses:
            self._rest.worked(time.monotonic())
        elif self._rest.is_due(time.monotonic()):
            # It may take a second, or wait for a hanging engine, so not in the heartbeat's thread.
            threading.Thread(target=self._give_memory_back, name="rest", daemon=True).start()

    def _give_memory_back(self) -> None:
        config, own = self._parts.config, self._parts.own
        try:
            # vLLM would have to restart; `sleep_while_learning` decides about that.
            may_sleep = config.engine != "vllm" or config.sleep_while_learning
            if may_sleep and not own.engine.sleep():
                self._rest.worked(time.monotonic())  # It is still answering an old request.
                return
            own.learner.rest()
        except TinkerGymError as error:  # A rank is lost; the next job starts new ones.
            _log.warning("the memory of pool %s was not returned: %s", self._pool_id, error)
