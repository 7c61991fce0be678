"""The running pools: started, adopted, measured and ended."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backend import worker_url
from backend.catalog.tensor_files import expected_bytes
from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG
from backend.scheduler.process_runner import ProcessRunner, Running
from backend.scheduler.room import MemoryBudget, PoolMemory, make_room, too_many
from backend.scheduler.unplaced import Unplaced
from backend.store.service_parts import lost_pools, pool_part
from backend.store.store import ServiceStore
from tinkergym.errors import InternalServiceError
from tinkergym.schema.events import ErrorView, JobState

_log = logging.getLogger(__name__)

_RESUMES = "resumes from the last checkpoint"
DIED = f"its worker died; {_RESUMES}"
_SILENT = f"its worker fell silent; {_RESUMES}"
_MOST_DEATHS = 5
"""Workers that may die of a job, or hang, without a finished step in between."""


@dataclass(slots=True)
class Pool:
    """A pool's process and what the scheduler knows of it. Times are Unix seconds."""

    pool_id: str
    model: str
    wanted_at: float
    """When it was last needed."""
    jobs_at: float
    """When a job last ran in it or waited for it."""
    ready: bool = False
    ready_at: float = 0.0
    node: str = ""
    """In a cluster, the node on which it runs, as far as known."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """The last known memory of all its processes in bytes, by node."""

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return sum(self.memory.values())


class Pools:
    """The pools of this service: one per model, or as many as its placement allows.

    A pool is listed from the start of its process until all of its end is recorded: process killed, row and
    socket removed, jobs back in the queue. A write that fails leaves it listed, and then the end is recorded
    again. A model in `_lost` is shown as a missing part by /v1/health.
    """

    def __init__(
        self, store: ServiceStore, workers: ProcessRunner, config: ServiceConfig, memory_bytes: int
    ) -> None:
        """Start without pools; `memory_bytes` is the machine's memory."""
        self._store, self._workers, self._config = store, workers, config
        self._by_id: dict[str, Pool] = {}
        self._room = MemoryBudget(int(config.pools_memory * memory_bytes), config.model_paths)
        self._measured_at = 0.0
        self._lost: set[str] = set()

    def __contains__(self, pool_id: str) -> bool:
        return pool_id in self._by_id

    def __iter__(self) -> Iterator[Pool]:
        return iter(list(self._by_id.values()))

    @property
    def models(self) -> dict[str, str]:
        """The model of each pool."""
        return {pool_id: pool.model for pool_id, pool in self._by_id.items()}

    @property
    def ready(self) -> dict[str, list[str]]:
        """The pools of each model that is loaded, oldest first."""
        found: dict[str, list[str]] = {}
        for pool_id, pool in self._by_id.items():
            if pool.ready:
                found.setdefault(pool.model, []).append(pool_id)
        return found

    def may_have_another(self, model: str, jobs: Mapping[str, int]) -> bool:
        """Whether a model with queued jobs may have a further pool.

        Args:
            model: It has a pool.
            jobs: The number of jobs in each pool.
        """
        own = [pool_id for pool_id, pool in self._by_id.items() if pool.model == model]
        full = all(self._by_id[one].ready and jobs.get(one, 0) >= self._config.jobs_per_pool for one in own)
        return full and len(own) < (self._config.placement_of(model).pools or 1)

    def adopt(self, found: Sequence[Running], now: float) -> None:
        """Take over the processes of the last scheduler, and record the end of those that are gone."""
        self._lost = lost_pools(self._store.parts(now))
        known = {record.pool_id: record for record in self._store.pools(now, max_age=float("inf"))}
        for process in found:
            if process.kind != "pool":
                continue
            record = known.pop(process.pool_id, None)
            if record is None:
                self._workers.end_pool(process.pool_id)  # It was not listening yet, so nothing is lost.
                continue
            # A pool has a row only after it has loaded its model.
            pool = Pool(record.pool_id, record.model, now, now, ready=True, ready_at=now)
            self._by_id[process.pool_id] = pool
        for pool_id, record in known.items():
            self._note_lost(record.model, now)
            _remove_and_requeue(self._store, pool_id, f"the service was restarted; {_RESUMES}")

    def start(self, model: str, now: float) -> None:
        """Start a pool of a model."""
        pool_id = f"pool-{uuid.uuid4().hex[:12]}"
        self._by_id[pool_id] = Pool(pool_id, model, now, now)
        # A cluster's plan adds up the parts of a pool itself; what was measured is their sum.
        own = self._expected(model)
        parts = expected_bytes(model, self._config.model_paths) if self._config.ray.address else own
        self._workers.start_pool(pool_id, model, parts)

    def became_ready(self, pool_id: str, now: float) -> Pool:
        """Record that a pool has loaded its model, and return it."""
        pool = self._by_id[pool_id]
        pool.ready, pool.ready_at = True, now
        self._measured_at = 0.0  # Its expected memory is no longer of interest.
        return pool

    def lost(self, pool_id: str, reason: str, now: float) -> Pool:
        """Record that a pool died or hangs, and return it; `remove` follows when all is recorded."""
        pool = self._by_id[pool_id]
        # Killed before its jobs are free: the store would refuse its writes, but it would keep the device
        # busy.
        self._workers.end_pool(pool_id)
        self._note_lost(pool.model, now)
        _remove_and_requeue(self._store, pool_id, reason)
        return pool

    def give_up(self, pool_id: str) -> None:
        """End a pool that never had a place; it has no row and no jobs, and is not reported as lost."""
        self._workers.end_pool(pool_id)
        self.remove(pool_id)

    def remove(self, pool_id: str) -> None:
        """Forget a pool whose end is recorded."""
        del self._by_id[pool_id]

    def end_silent(self, now: float) -> None:
        """End pools without heartbeats: an alive process that hangs. Its jobs go to a new one."""
        # From the moment at which a lease of the same age expires, so that its jobs are counted.
        since = now - self._config.lease_seconds
        known = self._store.pools(now, max_age=self._config.lease_seconds)
        alive = {record.pool_id for record in known if record.seen_at > since}
        for pool_id, pool in list(self._by_id.items()):
            if pool.ready and pool_id not in alive and pool.ready_at <= since:
                _log.warning("pool %s fell silent", pool_id)
                self.lost(pool_id, _SILENT, now)
                self.remove(pool_id)

    def end_idle(
        self, busy: Collection[str], queued_models: Collection[str], wanted: Collection[str], now: float
    ) -> None:
        """End pools that no client needs, or that are idle while all together exceed the memory.

        Args:
            busy: Pools with jobs.
            queued_models: Models that jobs wait for.
            wanted: Models that should have a pool.
            now: Unix seconds.
        """
        first = {model: own[0] for model, own in self.ready.items()}
        waiting = self._workers.waiting()
        for pool_id, pool in list(self._by_id.items()):
            if pool_id in busy or pool.model in queued_models:
                pool.jobs_at = now
            # Of several pools of a model one is enough while nothing is queued.
            needed = pool.model in queued_models or (
                pool.model in wanted and first.get(pool.model, pool_id) == pool_id
            )
            if pool_id in waiting and not needed:  # No other makes room for it.
                self._end(pool_id, "is no longer needed")
            elif not pool.ready or pool_id in busy or needed:
                pool.wanted_at = now
            elif now - pool.wanted_at > self._config.pool_idle_seconds:
                self._end(pool_id, "is no longer needed")
        for node, pools in self._by_node(now).items():
            left = [pool for pool in pools if pool.pool_id in self]  # It may have ended for another node.
            for pool_id in too_many(left, self._workers.node_bytes().get(node, self._room.budget)):
                self._end(pool_id, "is stopped because the pools exceed pools_memory")

    def make_room(self, models: Sequence[str], now: float, *, may_end: bool) -> bool:
        """Return whether these models fit into memory next to the pools.

        In a cluster they always do: Ray then looks for room, and `free_places` makes it.

        Args:
            models: Their memory is that of new pools.
            now: Unix seconds.
            may_end: Whether idle pools may end for them, and do if that makes room.
        """
        if self._config.ray.address:
            return True
        ends = make_room(self._memory(now), self._needed(models), self._room.budget)
        if ends is None or (ends and not may_end):
            return False
        for pool_id in ends:
            self._end(pool_id, f"makes room for {', '.join(models)}")
        return True

    def free_places(self, now: float) -> None:
        """End the idle pools that hold what another lacks which waits for a place."""
        if not any(why.may_change for why in self._workers.waiting().values()):
            return
        may_end = [pool for pool in self._memory(now) if pool.may_end]
        idle = sorted(may_end, key=lambda pool: pool.idle_since or 0.0)
        for pool_id in self._workers.ends_for_room([pool.pool_id for pool in idle]):
            self._end(pool_id, "makes room for one that waits for a place")

    @property
    def without_place(self) -> dict[str, Unplaced]:
        """Why models whose pool was asked for have no place; those that hold what they need by model."""
        models = self.models
        return {
            models[pool_id]: replace(
                why, holders=tuple((models[one], gpus) for one, gpus in why.holders if one in models)
            )
            for pool_id, why in self._workers.waiting().items()
            if pool_id in models
        }

    def why_no_room(self, *models: str) -> str:
        """Return why these models wait for memory."""
        used = sum(pool.memory_bytes for pool in self._by_id.values())
        return self._room.why_none(", ".join(models), used, self._needed(models))

    def measure(self, now: float) -> None:
        """Measure the pools' memory once per heartbeat, and store it for the gateway."""
        if now - self._measured_at < self._config.heartbeat_seconds:
            return
        self._measured_at = now
        for pool in self:
            pool.node = pool.node or self._workers.node_of(pool.pool_id)
        measured = self._workers.memory()
        for pool_id, on_nodes in measured.items():
            if pool_id in self._by_id:
                pool = self._by_id[pool_id]
                pool.memory = on_nodes
                if pool.ready:
                    self._room.saw(pool.model, pool.memory_bytes)
        self._store.record_pool_memory({one: sum(sizes.values()) for one, sizes in measured.items()})

    def forget_lost(self, wanted: Collection[str]) -> None:
        """Stop reporting a missing pool when another is ready or none is needed."""
        for model in [model for model in self._lost if model in self.ready or model not in wanted]:
            self._store.forget_part(pool_part(model))
            self._lost.discard(model)

    def clock_set_back(self, now: float) -> None:
        """Replace times of the old clock, which are in the future and would be waited for."""
        self._measured_at = 0.0
        for pool in self._by_id.values():
            pool.ready_at = pool.wanted_at = pool.jobs_at = now

    def _expected(self, model: str) -> int:
        """Return the memory of a model's pool, with ranks, which it starts only when it learns."""
        seen, ranks = self._room.expected(model), self._ranks(model)
        # What was seen has the ranks in it if the pool was learning when it was first measured.
        each = expected_bytes(model, self._config.model_paths) if ranks else 0
        return max(seen, (1 + ranks) * each)

    def _ranks(self, model: str) -> int:
        """Return how many processes of ranks a model's pool starts; the rank of a pool with one is itself."""
        ranks = self._config.placement_of(model).learner.ranks or 1
        return ranks if ranks > 1 else 0

    def _needed(self, models: Sequence[str]) -> int:
        return sum(self._expected(model) for model in models)

    def _end(self, pool_id: str, why: str) -> None:
        pool = self._by_id[pool_id]
        _log.info("pool %s of %s %s", pool_id, pool.model, why)
        self._workers.end_pool(pool_id)
        _remove_and_requeue(self._store, pool_id, f"its worker was ended; {_RESUMES}")
        self.remove(pool_id)

    def _note_lost(self, model: str, now: float) -> None:
        self._lost.add(model)
        self._store.touch_part(pool_part(model), now)

    def _by_node(self, now: float) -> dict[str, list[PoolMemory]]:
        found: dict[str, list[PoolMemory]] = {}
        for of_pool in self._memory(now):
            pool = self._by_id[of_pool.pool_id]
            on_nodes = pool.memory if pool.ready else {pool.node: of_pool.used_bytes}
            for node, size in on_nodes.items():
                found.setdefault(node, []).append(replace(of_pool, used_bytes=size))
        return found

    def _memory(self, now: float) -> list[PoolMemory]:
        return [
            PoolMemory(
                pool_id=pool_id,
                # Its memory grows while it starts, and with ranks when it learns.
                used_bytes=max(
                    pool.memory_bytes,
                    self._expected(pool.model) if not pool.ready or self._ranks(pool.model) else 0,
                ),
                preloaded=pool.model in self._config.preload,
                idle_since=pool.wanted_at if pool.ready and pool.wanted_at < now else None,
            )
            for pool_id, pool in self._by_id.items()
        ]


def _remove_and_requeue(store: ServiceStore, pool_id: str, reason: str) -> None:
    """Remove a pool whose process is gone, and return its jobs to the queue. May be repeated."""
    # Its row goes first, so that the gateway sends it no more requests. If this process dies in between, the
    # jobs return when their leases expire.
    url = store.remove_pool(pool_id)
    if url is not None:
        worker_url.remove(url)  # If it ran on this machine and was killed, it left its socket behind.
    for job_id in store.requeue_jobs_of(pool_id, reason):
        _fail_if_deadly(store, job_id)


def _fail_if_deadly(store: ServiceStore, job_id: str) -> None:
    """End a job that its workers die of, or hang in, before it interrupts other jobs there again.

    A lease that expired while the worker continued, or was ended by a restart, says nothing about the job.
    """
    deaths = store.deaths_since_step(job_id, DIED, _SILENT)
    if deaths < _MOST_DEATHS:
        return
    error = InternalServiceError(
        f"{deaths} workers in a row died or hung while they ran this job, without finishing a step",
        hint=f"see {SERVICE_LOG}; the usual cause is full memory: use fewer or shorter episodes",
    )
    view = ErrorView.model_validate(error.to_wire())
    store.finish_unleased(job_id, JobState.FAILED, str(error), view)
