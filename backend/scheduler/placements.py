"""Which queued jobs were told to which pool, and why the others wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from backend.config import ServiceConfig
from backend.fairness.fair_share import heads_needed, next_jobs
from backend.scheduler.pool_starts import PoolStarts
from backend.scheduler.pools import Pools
from backend.scheduler.process_runner import ProcessRunner
from backend.scheduler.queue_reasons import QueueSight
from backend.store.store import MOST_QUEUE_REASON, HeldJob, QueuedJob, QueueGroup, ServiceStore

_PLACEMENT_SECONDS = 10.0
"""A pool that was told to take a job and has not done so by then is told again."""
_MOST_EXPLAINED = 200
"""Jobs that get another reason in one tick."""


@dataclass(frozen=True, slots=True)
class _Placement:
    job: QueuedJob
    pool_id: str
    since: float


class Placements:
    """Tells pools which jobs to take.

    A placement lasts while its job is queued, its pool runs, and `_PLACEMENT_SECONDS` have not passed; until
    then it counts as a job of its pool and its tenant. It is a hint: the pool takes the lease, so a lost
    placement leaves the job in the queue.
    """

    def __init__(
        self, store: ServiceStore, workers: ProcessRunner, config: ServiceConfig, pools: Pools
    ) -> None:
        self._store, self._workers, self._config, self._pools = store, workers, config, pools
        self._placed: dict[str, _Placement] = {}
        self._no_room_beside: dict[str, str] = {}
        """Jobs whose other base models wait for memory, and the reason shown to their tenants. It stays, as
        the memory used at the moment changes constantly; that of models too."""
        self._no_room: dict[str, str] = {}
        self._why_queued: dict[QueueGroup, str] = {}

    def place(
        self, queue: Sequence[QueueGroup], held: Sequence[HeldJob], now: float, *, may_end: bool
    ) -> None:
        """Give free slots to waiting jobs, fairly between tenants.

        Args:
            queue: The waiting jobs.
            held: The running jobs.
            now: Unix seconds.
            may_end: Whether idle pools may end for a job's other base models.
        """
        running = self._pools.models
        self._placed = {
            job_id: placement
            for job_id, placement in self._placed.items()
            if placement.pool_id in running
            and now - placement.since < _PLACEMENT_SECONDS
            # It leaves the queue when its pool has taken the lease.
            and self._store.queued_jobs(job_id=job_id)
        }
        ready = self._pools.ready
        if not ready or not queue:
            return
        by_pool = Counter(job.worker_id for job in held)
        by_tenant = Counter(job.tenant_id for job in held)
        for placement in self._placed.values():
            if placement.job.model in ready:
                by_pool[placement.pool_id] += 1
                by_tenant[placement.job.tenant_id] += 1
        most = self._config.jobs_per_pool
        # Of a pool that has more jobs than places, the excess takes no place of the others.
        free = {m: sum(max(0, most - by_pool[pool_id]) for pool_id in own) for m, own in ready.items()}
        own = self._tenant_slots(queue, held)
        needed = heads_needed(queue, free_slots=free, running_by_tenant=by_tenant, tenant_slots=own)
        waiting = [
            job
            for (tenant_id, model), count in needed.items()
            for job in self._store.queued_jobs(
                tenant_id=tenant_id,
                model=model,
                # Placed jobs are in the queue until their pool takes the lease, and are left out below.
                limit=count + len(self._placed),
            )
            if job.job_id not in self._placed
        ]
        before, self._no_room_beside = self._no_room_beside, {}
        for job in next_jobs(waiting, free_slots=free, running_by_tenant=by_tenant, tenant_slots=own):
            first = may_end and not self._no_room_beside
            # Also while a model has waited long: this job keeps its own pool from ending for that one.
            if job.other_models and not self._pools.make_room(job.other_models, now, may_end=first):
                why = before.get(job.job_id) or self._pools.why_no_room(*job.other_models)
                self._no_room_beside[job.job_id] = why
                continue
            pool_id = min(ready[job.model], key=lambda one: by_pool[one])
            by_pool[pool_id] += 1
            self._placed[job.job_id] = _Placement(job, pool_id, now)
            self._workers.start_job(pool_id, job.job_id)

    def explain(self, queue: Sequence[QueueGroup], held: Sequence[HeldJob], starts: PoolStarts) -> None:
        """Set the queued jobs' reasons, of a long queue the oldest first. Written only if they changed."""
        models, by_model = self._pools.models, defaultdict[str, list[HeldJob]](list)
        for job in held:
            by_model[models.get(job.worker_id, "")].append(job)
        self._no_room = {
            model: self._no_room.get(model) or self._pools.why_no_room(model) for model in starts.without_room
        }
        known = self._why_queued
        self._why_queued = {
            group: known[group] if group in known else self._store.why_queued(group) for group in queue
        }
        sight = QueueSight(
            config=self._config,
            ready={model: len(own) for model, own in self._pools.ready.items()},
            held=by_model,
            coming=Counter(placement.job.model for placement in self._placed.values()),
            own=self._tenant_slots(queue, held) if queue else {},
            failed_starts=starts.failures,
            without_room=self._no_room,
            without_place=self._pools.without_place,
            why_queued=self._why_queued,
        )
        told: defaultdict[str, list[str]] = defaultdict(list)
        for job_id, why in self._no_room_beside.items():
            for queued in self._store.queued_jobs(job_id=job_id):
                if (reason := why[:MOST_QUEUE_REASON]) != queued.reason:
                    told[reason].append(job_id)
        apart = self._placed.keys() | self._no_room_beside.keys()
        for group in queue:
            reason = sight.reason(group)[:MOST_QUEUE_REASON]
            if reason == group.reason:
                continue
            of_group = {"model": group.model, "tenant_id": group.tenant_id, "reason": group.reason}
            limit = _MOST_EXPLAINED + len(apart)
            told[reason] += [
                job.job_id
                for job in self._store.queued_jobs(limit=limit, **of_group)
                if job.job_id not in apart
            ]
            if sum(map(len, told.values())) >= _MOST_EXPLAINED:
                break  # The next tick does the others.
        for reason, job_ids in told.items():
            if job_ids:
                self._store.explain_queue(job_ids, reason)

    def clock_set_back(self) -> None:
        """Forget placements, whose times are in the future now and would be waited for."""
        self._placed.clear()

    def _tenant_slots(
        self, queue: Sequence[QueueGroup], held: Sequence[HeldJob]
    ) -> dict[tuple[str, str], int]:
        """Return how many more jobs each waiting tenant may start on a model; empty if there is no limit."""
        most = self._config.most_jobs_of_one(self._store.tenants)
        if most is None:
            return {}
        models, ready = self._pools.models, self._pools.ready
        running = Counter((job.tenant_id, models.get(job.worker_id, "")) for job in held)
        running.update((one.job.tenant_id, one.job.model) for one in self._placed.values())
        keys = {(group.tenant_id, group.model) for group in queue}
        # A model that has no pool yet will have one.
        return {key: most * max(1, len(ready.get(key[1], ()))) - running[key] for key in keys}
