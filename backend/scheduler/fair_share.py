"""Which queued jobs start next. Pure: knows neither storage nor processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """What the choice depends on."""

    job_id: str
    tenant_id: str
    model: str
    created_at: float


def next_jobs(
    waiting: Sequence[WaitingJob],
    *,
    free_slots: Mapping[str, int],
    running_by_tenant: Mapping[str, int],
    tenant_slots: Mapping[tuple[str, str], int] | None = None,
) -> list[WaitingJob]:
    """Choose jobs for the free slots: the tenant that runs least comes first, then the oldest job.

    A job whose model has no free slot lets others pass (backfill): slots of different models do not compete.

    Args:
        waiting: In any order.
        free_slots: Jobs that each model's pool still takes; a model that is missing has none.
        running_by_tenant: Jobs that each tenant runs now.
        tenant_slots: Jobs that a tenant may still start on a model, by both; without an entry any number.

    Returns:
        The jobs in the order in which they are to be started.
    """
    free = Counter(dict(free_slots))
    share = Counter(dict(running_by_tenant))
    own = dict(tenant_slots or {})
    left = sorted(waiting, key=lambda job: job.created_at)
    chosen: list[WaitingJob] = []
    while True:
        startable = [
            job for job in left if free[job.model] > 0 and own.get((job.tenant_id, job.model), 1) > 0
        ]
        if not startable:
            return chosen
        job = min(startable, key=lambda candidate: (share[candidate.tenant_id], candidate.created_at))
        left.remove(job)
        free[job.model] -= 1
        share[job.tenant_id] += 1
        if (job.tenant_id, job.model) in own:
            own[job.tenant_id, job.model] -= 1
        chosen.append(job)
