"""The scheduler: keeps pools and environment workers alive and assigns queued jobs to pools.

Its whole state is in the store and in the running processes, so a new one can take over at any moment. It
places jobs; the pool itself takes the lease, so a lost placement leaves the job in the queue.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from backend import worker_url
from backend.compute.memory import machine_bytes
from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG
from backend.external.tokens import EnvTokens
from backend.scheduler.fair_share import WaitingJob, next_jobs
from backend.scheduler.queue_reasons import START_ATTEMPTS, QueueSight
from backend.scheduler.room import MemoryBudget, PoolMemory, make_room, too_many
from backend.scheduler.workers import (
    Change,
    EnvWorkerEnded,
    EnvWorkersSeen,
    PoolAddress,
    PoolEnded,
    PoolReady,
    WorkerPool,
)
from backend.store.parts import lost_pools, pool_part
from backend.store.store import HeldJob, QueuedJob, ServiceStore
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, TinkerGymError
from tinkergym.schema.events import ErrorView, JobState

_log = logging.getLogger(__name__)

_PART = "scheduler"
_PLACEMENT_SECONDS = 10.0
"""A pool that was told to take a job and has not done so by then is told again."""
_DIED = "its worker died"
_SILENT = "its worker fell silent"
_MOST_DEATHS = 5
"""Workers that may die of a job, or hang, without a finished step in between."""
_REFUSED_AGAIN_SECONDS = 20.0
"""Interval between notes that a model which is only sampled has no room."""
_OWNER_SECONDS = 30.0
"""After this time without jobs an owner's environment workers are stopped, if there are enough others."""
_SWEEP_SECONDS = 10.0
"""Interval between checks for unused tokens of environment servers."""
_LONGEST_PAUSE_SECONDS = 60.0
"""Interval between attempts to start a pool that refuses to."""
_QUIET_SECONDS = 1.0
"""Interval between ticks while nothing happens: what depends on time alone is at most this late."""


@dataclass(slots=True)
class _Pool:
    address: PoolAddress
    ready: bool = False
    env_workers: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    """The owner whose jobs an environment worker plays; new ones are missing."""
    wanted_at_by_owner: dict[str, float] = field(default_factory=dict)
    """When each owner last had jobs for environment workers."""
    seen_at: float = 0.0
    """When the pool last reported about them."""
    ready_at: float = 0.0
    wanted_at: float = 0.0
    """When it was last needed."""
    jobs_at: float = 0.0
    """When a job last ran in it or waited for it."""
    memory_bytes: int = 0
    """The last known memory of it and its environment workers."""


class Scheduler:
    """Call `tick` when `due`, which may be asked many times a second, from one thread."""

    def __init__(
        self,
        store: ServiceStore,
        workers: WorkerPool,
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
        self._store, self._workers, self._config, self._clock = store, workers, config, clock
        self._monotonic = monotonic
        self._pools: dict[str, _Pool] = {}
        self._placed: dict[str, float] = {}
        self._unnoted: deque[Change] = deque()
        self._failed_starts: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._refused: set[str] = set()
        """Models whose pool reported why it cannot start. Their jobs failed, so only new jobs retry."""
        self._room = MemoryBudget(int(config.pools_memory * memory()), config.models)
        self._no_room: dict[str, float] = {}
        """Models that wait for memory, and when this was last noted for sampling clients."""
        self._no_room_beside: dict[str, str] = {}
        """Jobs whose other base models wait for memory, and the reason shown to their tenants."""
        self._weighed_at = 0.0
        self._touched_at = 0.0
        self._tokens = EnvTokens(config.tokens_dir)
        self._swept_at = 0.0
        self._lost = lost_pools(store.parts(clock()))
        """Models whose pool died, and is being replaced."""
        self._ticked_at, self._ticked_at_monotonic = clock(), monotonic()
        self._looked_until = self._ticked_at_monotonic
        """When the last tick ended, by the monotonic clock."""
        self._commits: int | None = None
        """The store's commits that the last tick knows of."""
        self._patient_until = 0.0
        """Until then silence proves nothing: the clock was set, or this machine was suspended."""
        self._adopt()

    def due(self) -> bool:
        """Whether a tick could find anything: a commit, a change of a process, or the passing of time.

        An idle service therefore reads its database once a second instead of ten times.
        """
        commits = self._store.commits()
        return (
            commits is None
            or commits != self._commits
            or self._workers.has_changes()
            or self._monotonic() - self._looked_until >= _QUIET_SECONDS
        )

    def tick(self) -> None:
        """Check everything once, and do what is due."""
        try:
            self._look()
        finally:
            self._looked_until = self._monotonic()

    def _look(self) -> None:
        now = self._clock()
        self._mind_the_clock(now)
        if now - self._touched_at >= min(1.0, self._config.heartbeat_seconds):
            self._store.touch_part(_PART, now)
            self._touched_at = now
        # After this heartbeat, which alone is no reason for another tick, and before anything is read.
        self._commits = self._store.commits()
        # Reported once. If the store could not record it, the next tick does.
        self._unnoted.extend(self._workers.changes())
        while self._unnoted:
            self._note(self._unnoted[0], now)
            self._unnoted.popleft()
        if now >= self._patient_until:
            self._end_silent_pools(now)
            self._store.requeue_expired(now)
        queued = self._store.queued_jobs()
        waiting = _waiting(queued)
        # After the queue: a job taken between the two is in both, and its pool not idle.
        held = self._store.held_jobs()
        self._weigh_pools(now)
        self._end_idle_pools({job.worker_id for job in held}, {job.model for job in waiting}, now)
        self._start_pools([job.model for job in waiting], now)
        self._forget_lost({job.model for job in waiting}, now)
        self._mind_env_workers(now)
        self._place(waiting, held, now)
        self._explain_queue(queued, held)
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._tokens.remove_unused(self._store.environments_in_use(), now)
            self._swept_at = now

    def _mind_the_clock(self, now: float) -> None:
        """Detect that the clock was set, or that this machine was suspended, before all others seem silent.

        Then they get a whole lease to send a heartbeat. A tick that took long because the machine or the
        database was busy is neither: the others continued meanwhile.
        """
        monotonic, most = self._monotonic(), self._config.lease_seconds / 2
        before, self._ticked_at = self._ticked_at, now
        passed, self._ticked_at_monotonic = monotonic - self._ticked_at_monotonic, monotonic
        # If the monotonic clock runs while all processes are suspended, this happens between two ticks.
        stood_still = monotonic - self._looked_until >= most
        if before <= now < before + passed + most and not stood_still:
            return
        _log.warning("the clock went from %.0f to %.0f between two ticks", before, now)
        self._patient_until = now + self._config.lease_seconds
        if now < before:
            # Times by the old clock are in the future and would be waited for.
            self._touched_at = self._swept_at = self._weighed_at = 0.0
            self._placed.clear()
            self._not_before.clear()
            for pool in self._pools.values():
                pool.ready_at = pool.wanted_at = pool.jobs_at = now

    # --- processes ---

    def _adopt(self) -> None:
        now = self._clock()
        found = self._workers.running()
        known = {record.pool_id: record for record in self._store.pools(now, max_age=float("inf"))}
        for process in found:
            if process.kind == "pool":
                record = known.get(process.pool_id)
                if record is None:
                    # It was not listening yet, so nothing is lost, and its future address is unknown.
                    self._workers.end_pool(process.pool_id)
                    continue
                address = PoolAddress(
                    pool_id=record.pool_id,
                    model=record.model,
                    url=record.url,
                    token=record.token,
                )
                self._pools[process.pool_id] = _Pool(
                    address, ready=True, ready_at=now, wanted_at=now, jobs_at=now
                )
        for process in found:
            if process.kind == "env_worker" and process.pool_id in self._pools:
                self._pools[process.pool_id].env_workers.add(process.worker_id)
        for pool_id in known.keys() - self._pools.keys():
            self._lose(known[pool_id].model)
            self._bury(pool_id, known[pool_id].url, "the service was restarted")

    def _note(self, change: Change, now: float) -> None:
        """Apply the consequences. Every write may fail, and then all of this is done again."""
        match change:
            case PoolReady(pool_id=pool_id) if pool_id in self._pools:
                pool = self._pools[pool_id]
                pool.ready, pool.ready_at = True, now
                self._weighed_at = 0.0  # Its expected memory is no longer of interest.
                self._started(pool.address.model)
            case PoolEnded(pool_id=pool_id, error=error) if pool_id in self._pools:
                pool = self._pools[pool_id]
                _log.warning("pool %s of %s ended: %s", pool_id, pool.address.model, error or "process died")
                self._workers.end_pool(pool_id)
                self._lose(pool.address.model)
                self._bury(pool_id, pool.address.url, _DIED)
                if not pool.ready:
                    self._start_failed(pool.address.model, error)
                del self._pools[pool_id]
            case EnvWorkerEnded(pool_id=pool_id, worker_id=worker_id, end=end) if pool_id in self._pools:
                _log.warning("environment worker %s ended: %s", worker_id, end)
                self._pools[pool_id].env_workers.discard(worker_id)
                self._workers.env_worker_ended(pool_id, worker_id, end)
            case EnvWorkersSeen(pool_id=pool_id, owners=owners, wanted=wanted) if pool_id in self._pools:
                pool = self._pools[pool_id]
                pool.owners, pool.seen_at = dict(owners), now
                pool.wanted_at_by_owner |= dict.fromkeys(wanted, now)
            case _:
                pass

    def _started(self, model: str) -> None:
        self._failed_starts.pop(model, None)
        self._not_before.pop(model, None)
        self._refused.discard(model)
        self._store.forget_refusal(model)

    def _start_failed(self, model: str, error: TinkerGymError | None) -> None:
        failures = self._failed_starts[model] + 1
        if error is not None or failures >= START_ATTEMPTS:
            self._refuse(model, error)
        if error is None:
            self._refused.discard(model)
        else:
            self._refused.add(model)
        self._failed_starts[model] = failures
        self._not_before[model] = self._clock() + min(2.0**failures, _LONGEST_PAUSE_SECONDS)

    def _refuse(self, model: str, error: TinkerGymError | None) -> None:
        """Fail the jobs that wait for a model whose pool does not start."""
        reason = error or InternalServiceError(
            f"the worker for model {model!r} died {START_ATTEMPTS} times while it started",
            hint=f"see {SERVICE_LOG}; the model may not fit into memory",
        )
        view = ErrorView.model_validate(reason.to_wire())
        self._store.note_refusal(model, view, self._clock())
        for job in self._store.queued_jobs():
            if job.model == model:
                self._store.finish_unleased(job.job_id, JobState.FAILED, str(reason), view)

    def _end_silent_pools(self, now: float) -> None:
        """A process that is alive without heartbeats hangs; its jobs go to a new one."""
        # From the moment at which a lease of the same age expires, so that its jobs are counted.
        since = now - self._config.lease_seconds
        known = self._store.pools(now, max_age=self._config.lease_seconds)
        alive = {record.pool_id for record in known if record.seen_at > since}
        for pool_id, pool in list(self._pools.items()):
            if pool.ready and pool_id not in alive and pool.ready_at <= since:
                _log.warning("pool %s fell silent", pool_id)
                self._workers.end_pool(pool_id)
                self._lose(pool.address.model)
                self._bury(pool_id, pool.address.url, _SILENT)
                del self._pools[pool_id]

    def _end_idle_pools(self, busy: set[str], queued_models: set[str], now: float) -> None:
        wanted = {*self._config.preload, *queued_models, *self._store.wanted_pools(now)}
        for pool_id, pool in list(self._pools.items()):
            if pool_id in busy or pool.address.model in queued_models:
                pool.jobs_at = now
            if not pool.ready or pool_id in busy or pool.address.model in wanted:
                pool.wanted_at = now
            elif now - pool.wanted_at > self._config.pool_idle_seconds:
                self._end_pool(pool_id, "is not needed any more")
        for pool_id in too_many(self._pool_memory(now), self._room.budget):
            self._end_pool(pool_id, "has to go, as all together take too much memory")

    def _end_pool(self, pool_id: str, why: str) -> None:
        _log.info("pool %s of %s %s", pool_id, self._pools[pool_id].address.model, why)
        self._workers.end_pool(pool_id)
        self._bury(pool_id, self._pools.pop(pool_id).address.url, "its worker was ended")

    def _lose(self, model: str) -> None:
        """Report to /v1/health that a pool is missing, until another is ready or none is needed."""
        self._lost.add(model)
        self._store.touch_part(pool_part(model), self._clock())

    def _forget_lost(self, queued_models: set[str], now: float) -> None:
        if not self._lost:
            return
        ready = {pool.address.model for pool in self._pools.values() if pool.ready}
        wanted = {*self._config.preload, *queued_models, *self._store.wanted_pools(now)}
        for model in [model for model in self._lost if model in ready or model not in wanted]:
            self._store.forget_part(pool_part(model))
            self._lost.discard(model)

    def _bury(self, pool_id: str, url: str, reason: str) -> None:
        self._store.remove_pool(pool_id)
        worker_url.remove(url)  # A killed pool left its socket behind.
        for job_id in self._store.requeue_worker(pool_id, f"{reason}; resumes from the last checkpoint"):
            self._placed.pop(job_id, None)
            self._fail_if_deadly(job_id)

    def _fail_if_deadly(self, job_id: str) -> None:
        """End a job that its workers die of, or hang in, before it interrupts other jobs there again.

        A lease that expired while the worker continued, or was ended by a restart, says nothing about the
        job.
        """
        deaths = self._store.deaths_since_step(job_id, _DIED, _SILENT)
        if deaths < _MOST_DEATHS:
            return
        error = InternalServiceError(
            f"{deaths} workers in a row died or hung while they ran this job, without finishing a step",
            hint=f"see {SERVICE_LOG}; the usual cause is full memory: use fewer or shorter episodes",
        )
        view = ErrorView.model_validate(error.to_wire())
        self._store.finish_unleased(job_id, JobState.FAILED, str(error), view)

    def _start_pools(self, queued_models: list[str], now: float) -> None:
        served = {pool.address.model for pool in self._pools.values()}
        # A job submitted after a refusal may have a fixed cause, and should fail at once if not.
        at_once = self._refused.intersection(queued_models)
        waited, self._no_room = self._no_room, {}
        for model in dict.fromkeys([*self._config.preload, *queued_models, *self._store.wanted_pools(now)]):
            if model not in served and (model in at_once or now >= self._not_before.get(model, 0.0)):
                # First come, first served: small models do not pass a large one, which might wait forever.
                if model in self._config.preload or (not self._no_room and self._has_room(model, now)):
                    if model in waited:
                        self._store.forget_refusal(model)
                    self._start_pool(model, now)
                else:
                    self._no_room[model] = self._noted(model, waited.get(model, 0.0), now)

    def _has_room(self, model: str, now: float) -> bool:
        """Whether another pool fits into memory; ends idle ones if it then does."""
        ends = make_room(self._pool_memory(now), self._room.expected(model), self._room.budget)
        for pool_id in ends or ():
            self._end_pool(pool_id, f"makes room for {model}")
        return ends is not None

    def _noted(self, model: str, noted_at: float, now: float) -> float:
        """Let the gateway tell sampling clients that a model waits for memory; returns when it was noted."""
        if now - noted_at < _REFUSED_AGAIN_SECONDS:
            return noted_at
        error = ServiceUnavailableError(self._why_no_room(model), hint="try again later")
        self._store.note_refusal(model, ErrorView.model_validate(error.to_wire()), now)
        return now

    def _why_no_room(self, model: str, needed: int | None = None) -> str:
        used = sum(pool.memory_bytes for pool in self._pools.values())
        return self._room.why_none(model, used, self._room.expected(model) if needed is None else needed)

    def _pool_memory(self, now: float) -> list[PoolMemory]:
        return [
            PoolMemory(
                pool_id=pool_id,
                # Its memory grows while it starts.
                used_bytes=max(
                    pool.memory_bytes, 0 if pool.ready else self._room.expected(pool.address.model)
                ),
                preloaded=pool.address.model in self._config.preload,
                idle_since=pool.wanted_at if pool.ready and pool.wanted_at < now else None,
            )
            for pool_id, pool in self._pools.items()
        ]

    def _weigh_pools(self, now: float) -> None:
        """Measure the pools' memory, and store it for the gateway."""
        if now - self._weighed_at < self._config.heartbeat_seconds:
            return
        self._weighed_at = now
        weighed = self._workers.memory()
        for pool_id, size in weighed.items():
            if pool_id in self._pools:
                pool = self._pools[pool_id]
                pool.memory_bytes = size
                if pool.ready:
                    self._room.saw(pool.address.model, size)
        self._store.weigh_pools(weighed)

    def _start_pool(self, model: str, now: float) -> None:
        pool_id = f"pool-{uuid.uuid4().hex[:12]}"
        address = PoolAddress(
            pool_id=pool_id,
            model=model,
            url=worker_url.new_url(self._config.worker_transport, self._config.run_dir, pool_id),
            token=secrets.token_urlsafe(32),
        )
        self._pools[pool_id] = _Pool(address, wanted_at=now, jobs_at=now)
        self._workers.start_pool(address)

    def _mind_env_workers(self, now: float) -> None:
        """Keep `env_workers` of them for each owner, and end those of owners without jobs.

        A new one takes the first owner it meets, so workers for the next owner are ready in time. A resting
        model that is not preloaded has none: two take a third of a small model's memory.
        """
        for pool in self._pools.values():
            preloaded = pool.address.model in self._config.preload
            rests = not preloaded and now - pool.jobs_at > self._config.pool_rest_seconds
            since = pool.seen_at - _OWNER_SECONDS
            pool.wanted_at_by_owner = {k: at for k, at in pool.wanted_at_by_owner.items() if at > since}
            wanted = [owner for owner, at in pool.wanted_at_by_owner.items() if at == pool.seen_at]
            playing = {worker: pool.owners[worker] for worker in pool.env_workers & pool.owners.keys()}
            count, free = Counter(playing.values()), len(pool.env_workers) - len(playing)
            most = 0 if rests and not wanted else self._config.env_workers
            missing = sum(max(0, most - count[owner]) for owner in wanted) - free
            for _ in range(max(missing, most - len(pool.env_workers))):
                worker_id = f"env-{uuid.uuid4().hex[:12]}"
                pool.env_workers.add(worker_id)
                self._workers.start_env_worker(pool.address, worker_id)
            left = [worker for worker, owner in playing.items() if owner not in pool.wanted_at_by_owner]
            left += list(pool.env_workers - playing.keys()) if most == 0 else []
            for worker_id in left[: max(0, len(pool.env_workers) - most)]:
                pool.env_workers.discard(worker_id)
                self._workers.end_env_worker(pool.address.pool_id, worker_id)

    # --- jobs ---

    def _place(self, waiting: list[WaitingJob], held: list[HeldJob], now: float) -> None:
        queued = {job.job_id for job in waiting}
        self._placed = {
            job_id: since
            for job_id, since in self._placed.items()
            if job_id in queued and now - since < _PLACEMENT_SECONDS
        }
        ready = {pool.address.model: pool_id for pool_id, pool in self._pools.items() if pool.ready}
        if not ready or not waiting:
            return
        by_pool = Counter(job.worker_id for job in held)
        by_tenant = Counter(job.tenant_id for job in held)
        free = {model: self._config.jobs_per_pool - by_pool[pool_id] for model, pool_id in ready.items()}
        for job in waiting:
            if job.job_id in self._placed and job.model in free:
                free[job.model] -= 1
                by_tenant[job.tenant_id] += 1
        own = self._tenant_slots(waiting, held)
        open_jobs = [job for job in waiting if job.job_id not in self._placed]
        self._no_room_beside = {}
        for job in next_jobs(open_jobs, free_slots=free, running_by_tenant=by_tenant, tenant_slots=own):
            if job.other_models and not self._has_room_beside(job, now):
                continue
            self._placed[job.job_id] = now
            self._workers.start_job(ready[job.model], job.job_id)

    def _has_room_beside(self, job: WaitingJob, now: float) -> bool:
        """Return whether a job's other base models fit into memory next to the pools; may end idle ones."""
        needed = sum(self._room.expected(model) for model in job.other_models)
        ends = make_room(self._pool_memory(now), needed, self._room.budget)
        if ends is None:
            self._no_room_beside[job.job_id] = self._why_no_room(", ".join(job.other_models), needed)
            return False
        for pool_id in ends:
            self._end_pool(pool_id, f"makes room for {', '.join(job.other_models)}")
        return True

    def _tenant_slots(self, waiting: list[WaitingJob], held: list[HeldJob]) -> dict[tuple[str, str], int]:
        """Return how many more jobs each waiting tenant may start on a model; empty if there is no limit."""
        most = self._config.jobs_per_tenant
        if most is None:
            if self._store.tenants() < 2:
                return {}
            most = max(1, self._config.jobs_per_pool - 1)
        models = {pool_id: pool.address.model for pool_id, pool in self._pools.items()}
        running = Counter((job.tenant_id, models.get(job.worker_id, "")) for job in held)
        running.update((job.tenant_id, job.model) for job in waiting if job.job_id in self._placed)
        return {key: most - running[key] for key in {(job.tenant_id, job.model) for job in waiting}}

    def _explain_queue(self, queued: list[QueuedJob], held: list[HeldJob]) -> None:
        """Set the queued jobs' reasons. Written only if they changed."""
        waiting = [job for job in queued if job.job_id not in self._placed]
        sight = QueueSight(
            config=self._config,
            ready={pool.address.model for pool in self._pools.values() if pool.ready},
            held={
                pool.address.model: [job for job in held if job.worker_id == pool_id]
                for pool_id, pool in self._pools.items()
            },
            coming=Counter(job.model for job in queued if job.job_id in self._placed),
            own=self._tenant_slots(_waiting(queued), held) if waiting else {},
            failed_starts=self._failed_starts,
            without_room=self._no_room,
            why_no_room=self._why_no_room,
            without_room_beside=self._no_room_beside,
        )
        told: dict[str, list[str]] = {}
        for job in waiting:
            if (reason := sight.reason(job)) != job.reason:
                told.setdefault(reason, []).append(job.job_id)
        for reason, job_ids in told.items():
            self._store.explain_queue(job_ids, reason)


def _waiting(queued: list[QueuedJob]) -> list[WaitingJob]:
    return [
        WaitingJob(
            job_id=job.job_id,
            tenant_id=job.tenant_id,
            model=job.model,
            created_at=job.created_at,
            other_models=job.other_models,
        )
        for job in queued
    ]
