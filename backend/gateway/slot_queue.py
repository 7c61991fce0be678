"""What a tenant sees of the queue: the order in which slots are given, and who has them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend.fairness.fair_share import next_jobs
from backend.store.store import HeldJob, QueuedJob
from tinkergym.schema.queue import MOST_WAITING, ModelSlots, QueueView, RunningJob, TenantShare, WaitingJob

_KEPT_SECONDS = 1.0
"""How old an answer may be: each open page asks every three seconds."""


@dataclass(frozen=True, kw_only=True)
class SlotQueue:
    """The queue of all tenants at this moment. Pure."""

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
        own = {model for model, whose in self._runs.keys() | self._queued.keys() if whose == tenant_id}
        models = sorted({*self.pools.values(), *(one.model for one in self.waiting)})
        shown = [model for model in models if is_owner or model in own or model in offered]
        lines = {
            model: [one for one in self.lines[model] if is_owner or one[0].tenant_id == tenant_id]
            for model in shown
        }
        return QueueView(
            models=[
                self._slots(model, tenant_id, is_owner=is_owner, left_out=max(0, len(line) - MOST_WAITING))
                for model, line in lines.items()
            ],
            waiting=[
                WaitingJob(
                    job_id=job.job_id,
                    tenant_id=job.tenant_id,
                    model=job.model,
                    position=place,
                    reason=job.reason,
                )
                for line in lines.values()
                for job, place in line[:MOST_WAITING]
            ],
        )

    @cached_property
    def lines(self) -> dict[str, list[tuple[QueuedJob, int | None]]]:
        """The jobs that wait for each model, with their places; those without a place last."""
        by_model = defaultdict[str, list[QueuedJob]](list)
        for one in self.waiting:
            by_model[one.model].append(one)
        return {model: self._line(model, by_model[model]) for model in {*self.pools.values(), *by_model}}

    @cached_property
    def _pools_of(self) -> Counter[str]:
        return Counter(self.pools.values())

    @cached_property
    def _running(self) -> list[HeldJob]:
        # A job of a pool that is gone is about to return to the queue.
        return [one for one in self.held if one.worker_id in self.pools]

    @cached_property
    def _runs(self) -> Counter[tuple[str, str]]:
        return Counter((self.pools[one.worker_id], one.tenant_id) for one in self._running)

    @cached_property
    def _queued(self) -> Counter[tuple[str, str]]:
        return Counter((one.model, one.tenant_id) for one in self.waiting)

    def _line(self, model: str, mine: Sequence[QueuedJob]) -> list[tuple[QueuedJob, int | None]]:
        most, own = self._most(model), dict[tuple[str, str], int]()
        if most is not None:
            own = {
                (whose, model): most - self._runs[model, whose] for whose in {one.tenant_id for one in mine}
            }
        turns = next_jobs(
            mine,
            free_slots={model: len(mine)},
            running_by_tenant=Counter(one.tenant_id for one in self._running),
            tenant_slots=own,
        )
        in_turn = {one.job_id for one in turns}
        return [
            *((one, place) for place, one in enumerate(turns, start=1)),
            *((one, None) for one in mine if one.job_id not in in_turn),
        ]

    def _slots(self, model: str, tenant_id: str, *, is_owner: bool, left_out: int) -> ModelSlots:
        shares: dict[str, list[int]] = {}
        for column, counts in enumerate((self._runs, self._queued)):
            for (of, whose), count in counts.items():
                if of == model:
                    name = whose if is_owner or whose == tenant_id else ""
                    shares.setdefault(name, [0, 0])[column] += count
        return ModelSlots(
            model=model,
            pools=self._pools_of[model],
            slots=self._pools_of[model] * self.slots_per_pool,
            most_of_one=self._most(model),
            left_out=left_out,
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
        return self.most_of_one * max(1, self._pools_of[model])


class RecentQueue:
    """The queue as it was at most a second ago, read once for all who ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._read: tuple[float, SlotQueue] | None = None

    def get(self, read: Callable[[], SlotQueue]) -> SlotQueue:
        """Return the queue; `read` is called if the last answer is older than a second."""
        with self._lock:  # Who comes while it is read waits for that.
            if self._read is None or self._clock() - self._read[0] >= _KEPT_SECONDS:
                self._read = self._clock(), read()
            return self._read[1]
