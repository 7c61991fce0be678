"""Which pools end to make room in memory for another. Independent of storage and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.catalog.tensor_files import expected_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What the choice depends on."""

    pool_id: str
    used_bytes: int
    """With its environment workers; for a starting one, the expected memory."""
    preloaded: bool
    """It is never ended for others."""
    idle_since: float | None
    """None while it is in use."""

    @property
    def may_end(self) -> bool:
        """Whether it is unused now."""
        return self.idle_since is not None and not self.preloaded


def too_many(pools: Sequence[PoolMemory], budget: int) -> list[str]:
    """Return the idle pools to end because all together use more than `budget` bytes."""
    return [pool.pool_id for pool in _ends(pools, 0, budget)]


def make_room(pools: Sequence[PoolMemory], needed: int, budget: int) -> list[str] | None:
    """Return the idle pools to end, least recently used first, so that another one may start.

    A pool may always start if all others are preloaded: waiting would not make more room for it.

    Args:
        pools: All pools.
        needed: Expected memory of the new one, in bytes.
        budget: Memory for all together, in bytes.

    Returns:
        None if there is no room even without all idle ones; then none should be ended.
    """
    ends = _ends(pools, needed, budget)
    left = [pool for pool in pools if pool not in ends]
    fits = sum(pool.used_bytes for pool in left) + needed <= budget
    return [pool.pool_id for pool in ends] if fits or all(pool.preloaded for pool in left) else None


def _ends(pools: Sequence[PoolMemory], needed: int, budget: int) -> list[PoolMemory]:
    excess = sum(pool.used_bytes for pool in pools) + needed - budget
    ends = []
    for pool in sorted((p for p in pools if p.may_end), key=lambda p: p.idle_since or 0.0):
        if excess <= 0:
            break
        ends.append(pool)
        excess -= pool.used_bytes
    return ends


class MemoryBudget:
    """The memory limit of all pools together, and the expected memory of a model's pool."""

    def __init__(self, budget: int, models: Mapping[str, str]) -> None:
        """Start without measurements; `models` maps names to their location."""
        self.budget = budget
        self._models = models
        self._seen: dict[str, int] = {}

    def saw(self, model: str, used_bytes: int) -> None:
        """Record the memory of a model's pool; the first measurement counts, before jobs made it grow."""
        self._seen.setdefault(model, used_bytes)

    def expected(self, model: str) -> int:
        """Return the memory that a model's pool needs; unknown for a hub model before its download."""
        if model in self._seen:
            return self._seen[model]
        return expected_bytes(model, self._models)

    def why_none(self, model: str, used_bytes: int, needed: int) -> str:
        """Return why one or several models wait for memory."""
        return (
            f"{model!r} waits for memory: the loaded models have {used_bytes / 1e9:.1f} of "
            f"{self.budget / 1e9:.1f} GB that pools_memory allows, it needs about {needed / 1e9:.1f}, and "
            "those that could be unloaded are in use or make room for one that waits longer"
        )
