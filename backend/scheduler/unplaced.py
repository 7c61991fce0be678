"""Why a model has no place yet, as its jobs say. Independent of Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from backend.planning.machines import NotPlaced

NO_PLACE = "no place for the model"
JOIN_SECONDS = 30.0
"""After the last change of a cluster's nodes, which join one after the other, no model is called impossible
for this long, and the service not short of nodes."""

_MOST_NAMED = 4
"""The jobs that a reason names."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Why a pool has no place."""

    reason: str
    may_change: bool
    """Whether the end of other pools would help."""
    forever: bool = False
    """Whether it had none on the present nodes even if nothing else ran there."""
    holders: tuple[tuple[str, int], ...] = ()
    """(pool, GPUs): those that are on nodes it could use."""


def why_unplaced(
    found: NotPlaced | None, *, nodes: Collection[object], refusals: str, all_known: bool = True
) -> Unplaced:
    """Return why a pool has no place.

    Args:
        found: What the plan says; None if Ray has not given what was planned, because others use it.
        nodes: The nodes that may be used.
        refusals: Which nodes may not, and why.
        all_known: Whether the plan knew all that the nodes have; else nothing is forever.
    """
    also = f"; {refusals}" if refusals else ""
    if not nodes:
        return Unplaced(f"{NO_PLACE}, no node of the Ray cluster can be used{also or ' yet'}", False)
    if found is None:
        return Unplaced(f"{NO_PLACE}, others use the cluster's CPUs or memory at the moment{also}", True)
    forever = found.forever and all_known
    ever = " ever on these nodes" if forever else " yet"
    it = "it " if found.needs else ""
    reason = f"{NO_PLACE}{ever}, {it}{found.reason}{also}"
    return Unplaced(reason, not forever, forever, found.holders)


def with_own_jobs(unplaced: Unplaced, jobs: Mapping[str, Sequence[str]]) -> str:
    """Return a reason with the jobs of its reader that hold GPUs.

    Args:
        unplaced: Why a pool has no place.
        jobs: The reader's jobs in each pool.
    """
    held = [(job, gpus) for pool_id, gpus in unplaced.holders if gpus for job in jobs.get(pool_id, ())]
    named = [f"your {job} holds {gpus} GPU{'' if gpus == 1 else 's'}" for job, gpus in held[:_MOST_NAMED]]
    return "; ".join([unplaced.reason, *named])
