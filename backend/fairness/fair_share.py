"""Which queued jobs start next. Pure: reads no storage, knows no processes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar


class Queued(Protocol):
    """A job in the queue, or several of one tenant on one model."""

    @property
    def tenant_id(self) -> str:
        """Whose it is."""

    @property
    def model(self) -> str:
        """Which model's slots it waits for."""


class QueuedOne(Queued, Protocol):
    """A job in the queue."""

    @property
    def created_at(self) -> float:
        """Unix seconds."""


class QueuedGroup(Queued, Protocol):
    """Several jobs of one tenant on one model."""

    @property
    def oldest(self) -> int:
        """The number of the oldest: it grows in order of creation."""


Job = TypeVar("Job", bound=QueuedOne)


def next_jobs(
    waiting: Sequence[Job],
    *,
    free_slots: Mapping[str, int],
    running_by_tenant: Mapping[str, int],
    tenant_slots: Mapping[tuple[str, str], int] | None = None,
) -> list[Job]:
    """Choose jobs for the free slots: the tenant that runs least comes first, then the oldest job.

    A job whose model has no free slot lets others pass (backfill): slots of different models do not compete.

    Args:
        waiting: In any order; at least those that `heads_needed` says.
        free_slots: Free places of each model's pool; a missing model has none.
        running_by_tenant: Running jobs of each tenant.
        tenant_slots: Jobs that a tenant may still start on a model, by both; unlimited without an entry.

    Returns:
        The jobs in the order in which to start them.
    """
    free = Counter(dict(free_slots))
    share = Counter(dict(running_by_tenant))
    own = dict(tenant_slots or {})
    lines: defaultdict[tuple[str, str], deque[Job]] = defaultdict(deque)
    for job in sorted(waiting, key=lambda job: job.created_at):
        lines[job.tenant_id, job.model].append(job)
    heap = [(share[key[0]], line[0].created_at, key) for key, line in lines.items()]
    heapq.heapify(heap)
    chosen: list[Job] = []
    while heap:
        counted, created_at, key = heapq.heappop(heap)
        tenant_id, model = key
        # Slots only become fewer here, so this line is left for good.
        if free[model] <= 0 or own.get(key, 1) <= 0:
            continue
        if counted != share[tenant_id]:  # It got a slot of another model meanwhile.
            heapq.heappush(heap, (share[tenant_id], created_at, key))
            continue
        chosen.append(lines[key].popleft())
        free[model] -= 1
        share[tenant_id] += 1
        if key in own:
            own[key] -= 1
        if lines[key]:
            heapq.heappush(heap, (share[tenant_id], lines[key][0].created_at, key))
    return chosen


def heads_needed(
    groups: Collection[QueuedGroup],
    *,
    free_slots: Mapping[str, int],
    running_by_tenant: Mapping[str, int],
    tenant_slots: Mapping[tuple[str, str], int],
) -> dict[tuple[str, str], int]:
    """Return how many of the oldest jobs of each tenant and model `next_jobs` can choose from.

    Each job chosen makes one tenant wait longer, so that of a model's tenants, in the order in which they
    would get its first slot, only as many can have a turn as there are slots in all.
    """
    slots = {model: count for model, count in free_slots.items() if count > 0}
    oldest: dict[tuple[str, str], int] = {}
    for group in groups:
        key = group.tenant_id, group.model
        if group.model in slots and tenant_slots.get(key, 1) > 0:
            oldest[key] = min(group.oldest, oldest.get(key, group.oldest))
    in_turn = sorted(oldest, key=lambda key: (running_by_tenant.get(key[0], 0), oldest[key]))
    turns: Counter[str] = Counter()
    needed = {}
    for key in in_turn:
        turns[key[1]] += 1
        if turns[key[1]] <= sum(slots.values()):
            needed[key] = slots[key[1]]
    return needed
