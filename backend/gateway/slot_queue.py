"""What a tenant sees of the queue: the order in which slots are given, and who has them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from backend.fairness.fair_share import next_jobs
from backend.store.store import HeldJob, QueuedJob
from tinkergym.schema.queue import MOST_WAITING, ModelSlots, QueueView, RunningJob, TenantShare, WaitingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQueue:
    """The queue of all tenants at this moment."""

    waiting: Sequence[QueuedJob]
    held: Sequence[HeldJob]
    pools: Mapping[str, str]
    """The model of each pool."""
    slots_per_pool: int
    most_of_one: int | None
    """Slots of a pool that one tenant may have; None is all."""

    def seen_by(self, tenant_id: str, *, is_owner: bool, offered: Collection[str]) -> QueueView:
        """Return what a tenant sees: its own jobs, and totals of the others.

        Args:
            tenant_id: Who asks.
            is_owner: Whether it sees all tenants.
            offered: Models whose names everybody may see.
        """
        running = Counter((self.pools[one.worker_id], one.tenant_id) for one in self._running)
        queued = Counter((one.model, one.tenant_id) for one in self.waiting)
        own = {model for model, whose in running.keys() | queued.keys() if whose == tenant_id}
        models = sorted({*self.pools.values(), *(one.model for one in self.waiting)})
        shown = [model for model in models if is_owner or model in own or model in offered]
        lines = [(job, place) for model in shown for job, place in self._line(model, running)]
        return QueueView(
            models=[self._slots(model, tenant_id, is_owner, running, queued) for model in shown],
            waiting=[
                WaitingJob(
                    job_id=job.job_id,
                    tenant_id=job.tenant_id,
                    model=job.model,
                    position=place,
                    reason=job.reason,
                )
                for job, place in lines
                if is_owner or job.tenant_id == tenant_id
            ][:MOST_WAITING],
        )

    @property
    def _running(self) -> list[HeldJob]:
        # A job of a pool that is gone is about to return to the queue.
        return [one for one in self.held if one.worker_id in self.pools]

    def _line(self, model: str, running: Mapping[tuple[str, str], int]) -> list[tuple[QueuedJob, int | None]]:
        """Return the jobs that wait for a model in the order of their turns, those without a turn last."""
        mine = [one for one in self.waiting if one.model == model]
        most = self._most(model)
        waits = [one for one in mine if most is None or running.get((model, one.tenant_id), 0) < most]
        by_tenant = Counter(one.tenant_id for one in self._running)
        turns = next_jobs(waits, free_slots={model: len(waits)}, running_by_tenant=by_tenant)
        in_turn = {one.job_id for one in turns}
        held_back = [one for one in mine if one.job_id not in in_turn]
        return [
            *((one, place) for place, one in enumerate(turns, start=1)),
            *((one, None) for one in held_back),
        ]

    def _slots(
        self,
        model: str,
        tenant_id: str,
        is_owner: bool,
        running: Mapping[tuple[str, str], int],
        queued: Mapping[tuple[str, str], int],
    ) -> ModelSlots:
        shares: dict[str, list[int]] = {}
        for column, counts in enumerate((running, queued)):
            for (of, whose), count in counts.items():
                if of == model:
                    name = whose if is_owner or whose == tenant_id else ""
                    shares.setdefault(name, [0, 0])[column] += count
        pools = list(self.pools.values()).count(model)
        return ModelSlots(
            model=model,
            pools=pools,
            slots=pools * self.slots_per_pool,
            most_of_one=self._most(model),
            shares=[
                TenantShare(tenant_id=name, running=runs, waiting=waits)
                for name, (runs, waits) in sorted(shares.items(), key=lambda one: (-one[1][0], one[0]))
            ],
            running=[
                RunningJob(job_id=one.job_id, tenant_id=one.tenant_id, pool_id=one.worker_id)
                for one in self._running
                if self.pools[one.worker_id] == model and (is_owner or one.tenant_id == tenant_id)
            ],
        )

    def _most(self, model: str) -> int | None:
        if self.most_of_one is None:
            return None
        return self.most_of_one * max(1, list(self.pools.values()).count(model))
