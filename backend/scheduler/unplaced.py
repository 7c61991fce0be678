"""What a pool asks a cluster for, and why it has no place there yet. Independent of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backend.config import ServiceConfig

CLUSTER = "the Ray cluster"
"""What a reason holds that speaks of a cluster. None has a colon: what follows one is why a job is queued."""
_OWN_SHARE = 0.0001
"""On our own Ray every process asks for this much of its single CPU per CPU: the machine is not Ray's to
divide, and a model that does not fit is a matter of `pools_memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What the processes of one pool ask Ray for, in CPUs and bytes."""

    ranks: int
    pool_cpus: float
    pool_bytes: int
    env_worker_cpus: float
    rank_cpus: float

    @classmethod
    def of(cls, config: ServiceConfig, model: str, pool_bytes: int) -> Wants:
        """Return what a pool with these settings needs."""
        share = _share(config)
        ranks = config.placement_of(model).learner.ranks or 1
        return cls(
            ranks=ranks,
            pool_cpus=share * (config.torch_threads if ranks == 1 else 1.0),
            pool_bytes=pool_bytes if config.ray.address else 0,
            env_worker_cpus=env_worker_cpus(config),
            rank_cpus=share * max(1.0, config.torch_threads / ranks),
        )

    def bundles(self, config: ServiceConfig) -> list[dict[str, float]]:
        """Return the bundles of the group."""
        ranks = self.ranks
        first = {"CPU": self.pool_cpus + (self.rank_cpus if ranks > 1 else 0.0), "memory": self.pool_bytes}
        workers = {"CPU": max(config.env_workers, 1) * self.env_worker_cpus}
        rank = {"CPU": self.rank_cpus, "memory": self.pool_bytes}
        wanted = [first, workers, *[rank] * (ranks - 1)]
        return [{name: float(amount) for name, amount in each.items() if amount} for each in wanted]


def env_worker_cpus(config: ServiceConfig) -> float:
    """Return what an environment worker asks Ray for."""
    return _share(config) * config.ray.env_worker_cpus


def _share(config: ServiceConfig) -> float:
    return 1.0 if config.ray.address else _OWN_SHARE


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Why a pool has no place."""

    reason: str
    may_change: bool
    """Whether the end of other pools would help."""


class Room(Protocol):
    """A node that may be used."""

    @property
    def cpus(self) -> float:
        """All of its CPUs."""
        ...

    @property
    def memory_bytes(self) -> int:
        """All of its memory for processes."""
        ...


def why_unplaced(state: str, wants: Wants, nodes: Sequence[Room], refusals: str) -> Unplaced:
    """Return why a pool has no place.

    Args:
        state: Ray's `scheduling_state` of its group.
        wants: What it asks for.
        nodes: The nodes that may be used.
        refusals: Which nodes may not, and why.
    """
    needs = f"{wants.pool_cpus:g} CPUs and {wants.pool_bytes / 1e9:.1f} GB"
    also = f"; {refusals}" if refusals else ""
    if not nodes:
        return Unplaced(f"no node of {CLUSTER} can be used{also or ' yet'}", may_change=False)
    if state == "INFEASIBLE":
        cpus, memory = max(node.cpus for node in nodes), max(node.memory_bytes for node in nodes)
        has = f"the largest has {cpus:g} CPUs and {memory / 1e9:.1f} GB"
        return Unplaced(f"{CLUSTER} has no node with {needs} besides environment workers, {has}{also}", False)
    return Unplaced(f"{CLUSTER} has no {needs} free at the moment{also}", may_change=True)
