"""The scheduler: keeps pools and environment workers alive and assigns queued jobs to pools.

Its whole state is in the store and in the running processes, so a new one can take over at any moment.

    scheduler.Scheduler the order of a tick
    pools.Pools         the running pools; each ends once, and its jobs return to the queue
    pool_starts         which models get a pool; pauses and refusals after failed starts
    env_workers         the environment workers of each pool
    engine_fleets       the engine hosts of each pool
    placements          which job was told to which pool, and why the others wait
    clock_watch         a jump of the clock makes nobody silent
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from backend.config import ServiceConfig
from backend.external.environment_tokens import remove_unused
from backend.processes.memory import machine_bytes
from backend.scheduler.clock_watch import ClockWatch
from backend.scheduler.engine_fleets import EngineFleets
from backend.scheduler.env_workers import EnvWorkers
from backend.scheduler.placements import Placements
from backend.scheduler.pool_starts import PoolStarts
from backend.scheduler.pools import DIED, Pools
from backend.scheduler.process_runner import (
    Change,
    EngineHostEnded,
    EnvWorkerEnded,
    EnvWorkersSeen,
    PoolEnded,
    PoolReady,
    ProcessRunner,
)
from backend.scheduler.unplaced import JOIN_SECONDS
from backend.store.service_parts import NODES
from backend.store.store import ServiceStore
from tinkergym.errors import InvalidRequestError

_log = logging.getLogger(__name__)

_PART = "scheduler"
_SWEEP_SECONDS = 10.0
"""Interval between checks for unused tokens of environment servers."""
_QUIET_SECONDS = 1.0
"""Interval between ticks while nothing happens: what depends on time alone is at most this late."""
_RESTING_SECONDS = 5.0
"""The same while there is no job and nothing starts; at most a sixth of a lease, because only a
tick notices a silent process. The gateway misses a scheduler that is silent for three times as long."""


class Scheduler:
    """Call `tick` when `due`, which may be asked many times a second, from one thread."""

    def __init__(
        self,
        store: ServiceStore,
        workers: ProcessRunner,
        config: ServiceConfig,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] = machine_bytes,
    ) -> None:
        """Take over the running processes.

        Args:
            store: The service's store.
            workers: Runs the processes.
            config: The service's settings.
            clock: Unix seconds.
            monotonic: Monotonic seconds.
            memory: The machine's memory in bytes.
        """
        self._store, self._workers, self._config = store, workers, config
        self._clock, self._monotonic = clock, monotonic
        self._watch = ClockWatch(config.lease_seconds, now=clock(), monotonic=monotonic())
        self._pools = Pools(store, workers, config, memory())
        self._starts = PoolStarts(store, config, self._pools)
        self._env_workers = EnvWorkers(workers, config)
        self._fleets = EngineFleets(store, workers, config)
        self._placements = Placements(store, workers, config, self._pools)
        self._unnoted: deque[Change] = deque()
        self._touched_at = self._swept_at = 0.0
        self._commits: int | None = None
        """The store's commits that the last tick knows of."""
        self._lacks_nodes: bool | None = None
        """What is recorded about it; None: what the last scheduler recorded."""
        self._lacking_since: float | None = None
        self._began_at = monotonic()
        self._quiet_seconds = _QUIET_SECONDS
        found = workers.running()
        self._pools.adopt(found, clock())
        self._env_workers.adopt(found)
        self._fleets.adopt(found, clock())

    def due(self) -> bool:
        """Whether a tick could find anything: a commit, a change of a process, or the passing of time.

        An idle service therefore reads its database every few seconds instead of ten times a second.
        """
        commits = self._store.commits()
        return (
            commits is None
            or commits != self._commits
            or self._workers.has_changes()
            or self._watch.quiet_seconds(self._monotonic()) >= self._quiet_seconds
        )

    def tick(self) -> None:
        """Check everything once, and do what is due."""
        try:
            self._tick(self._clock())
        finally:
            self._watch.tick_ends(self._monotonic())

    def _tick(self, now: float) -> None:
        self._quiet_seconds = _QUIET_SECONDS  # If this tick fails, too.
        if self._watch.tick_begins(now, self._monotonic()):
            self._touched_at = self._swept_at = 0.0
            for part in (self._placements, self._starts):
                part.clock_set_back()
            self._pools.clock_set_back(now)
            self._fleets.clock_set_back(now)
        # Once a second at most; a resting scheduler writes with each of its ticks.
        if now - self._touched_at >= min(1.0, self._config.heartbeat_seconds):
            self._store.touch_part(_PART, now)
            self._touched_at = now
        self._pools.measure(now)
        # After these writes, which alone are no reason for another tick, and before anything is read.
        self._commits = self._store.commits()
        # Reported once. If the store could not record it, the next tick does.
        self._unnoted.extend(self._workers.changes())
        while self._unnoted:
            self._note(self._unnoted[0], now)
            self._unnoted.popleft()
        self._give_up_unplaced(now)
        self._note_nodes(now)
        # Before the queue is read: the jobs that return to it here are placed in this tick.
        if not self._watch.patient(now):
            self._pools.end_silent(now)
            self._fleets.end_silent(now)
            self._store.requeue_expired(now)
        queue = self._store.queue_groups()
        # After the queue: a job taken between the two is in both, and its pool not idle.
        held = self._store.held_jobs()
        models = dict.fromkeys(group.model for group in queue)
        wanted = list(dict.fromkeys([*self._config.preload, *models, *self._store.wanted_pools(now)]))
        self._pools.end_idle({job.worker_id for job in held}, models, wanted, now)
        self._starts.start_missing(wanted, models, now, jobs=Counter(job.worker_id for job in held))
        self._starts.note_impossible(self._workers.impossible(), now)
        self._pools.free_places(now)
        self._pools.forget_lost(wanted)
        self._env_workers.start_and_end(self._pools, now)
        self._fleets.start_missing(self._pools, now)
        self._placements.place(queue, held, now, may_end=not self._starts.without_room)
        self._placements.explain(queue, held, self._starts)
        if now - self._swept_at >= _SWEEP_SECONDS:
            remove_unused(self._store, self._store.environments_in_use(), now)
            self._swept_at = now
        rests = not queue and not held and self._pools.ready.keys() >= {*wanted, *self._pools.models.values()}
        if rests:
            self._quiet_seconds = max(_QUIET_SECONDS, min(_RESTING_SECONDS, self._config.lease_seconds / 6))

    def _give_up_unplaced(self, now: float) -> None:
        """End the pools that wait for nothing: this machine has no place for them, whatever ends here.

        In a cluster they wait on: a node may join, by an autoscaler or by hand.
        """
        waiting = {} if self._config.ray.address else self._workers.waiting()
        hint = "choose another model, or ask the operator: tinkergym plan shows what would fit"
        models = self._pools.models
        for pool_id, why in waiting.items():
            if why.forever and pool_id in models:
                error = InvalidRequestError(why.reason, hint=hint, field="model", code="no_place")
                # First: if the store refuses a write, the pool still waits, and the next tick does it again.
                self._starts.failed(models[pool_id], error, now)
                self._pools.give_up(pool_id)

    def _note_nodes(self, now: float) -> None:
        """Record whether /v1/health names the nodes as what is missing."""
        ready, passed = self._pools.ready, self._monotonic()
        # Running pools prove that there are nodes, of which a new scheduler hears only after a moment.
        none = bool(self._config.ray.address) and not ready and not self._workers.node_bytes()
        # While others serve, only the operator's own models count: a tenant may name any folder.
        waits = any(
            why.forever and (not ready or model in self._config.preload)
            for model, why in self._pools.without_place.items()
        )
        if not (none or waits):
            self._lacking_since = None
        elif self._lacking_since is None:
            self._lacking_since = passed
        lasts = self._lacking_since is not None and passed - self._lacking_since >= JOIN_SECONDS
        offered = set(self._config.models)
        lacks = lasts or (bool(offered) and offered <= self._workers.impossible().keys())
        # Until it is clear, what was recorded stays, also by the last scheduler.
        is_new = self._lacks_nodes is None and passed - self._began_at < JOIN_SECONDS
        if lacks == self._lacks_nodes or (not lacks and (is_new or self._lacking_since is not None)):
            return
        if lacks:
            self._store.touch_part(NODES, now)
        else:
            self._store.forget_part(NODES)
        self._lacks_nodes = lacks

    def _note(self, change: Change, now: float) -> None:
        """Apply the consequences. Every write may fail, and then all of this is done again."""
        if change.pool_id not in self._pools:
            return
        match change:
            case PoolReady(pool_id=pool_id):
                self._starts.succeeded(self._pools.became_ready(pool_id, now).model)
            case PoolEnded(pool_id=pool_id, error=error):
                pool = self._pools.lost(pool_id, DIED, now)
                _log.warning("pool %s of %s ended: %s", pool_id, pool.model, error or "process died")
                if not pool.ready:
                    self._starts.failed(pool.model, error, now)
                self._pools.remove(pool_id)
            case EnvWorkerEnded(worker_id=worker_id, end=end):
                _log.warning("environment worker %s ended: %s", worker_id, end)
                self._env_workers.ended(change)
            case EngineHostEnded():
                self._fleets.ended(change, now)
            case EnvWorkersSeen():
                self._env_workers.reported(change, now)
