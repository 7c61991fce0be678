"""Which queued jobs start next. Pure: reads no storage, knows no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from backend.store.store import QueuedJob


def next_jobs(
    waiting: Sequence[QueuedJob],
    *,
    free_slots: Mapping[str, int],
    running_by_tenant: Mapping[str, int],
    tenant_slots: Mapping[tuple[str, str], int] | None = None,
) -> list[QueuedJob]:
    """Choose jobs for the free slots: the tenant that runs least comes first, then the oldest job.

    A job whose model has no free slot lets others pass (backfill): slots of different models do not compete.

    Args:
        waiting: In any order.
        free_slots: Free places of each model's pool; a missing model has none.
        running_by_tenant: Running jobs of each tenant.
        tenant_slots: Jobs that a tenant may still start on a model, by both; unlimited without an entry.

    Returns:
        The jobs in the order in which to start them.
    """
    free = Counter(dict(free_slots))
    share = Counter(dict(running_by_tenant))
    own = dict(tenant_slots or {})
    left = sorted(waiting, key=lambda job: job.created_at)
    chosen: list[QueuedJob] = []
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
