"""Where pools run: each waits here until Ray has room for its group on nodes that may be used."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.config import ServiceConfig
from backend.scheduler.ray_groups import PoolGroups, one_of
from backend.scheduler.ray_nodes import Nodes
from backend.scheduler.unplaced import Unplaced, Wants, why_unplaced

_LOOK_SECONDS = 1.0
"""How often Ray is asked whether it has room for a pool by now."""
_PLACED_SECONDS = 0.2
"""How long a new pool's request is waited for, which takes milliseconds where there is room."""


@dataclass(slots=True)
class Wanted:
    """A pool that is to start as soon as Ray has room for it."""

    model: str
    wants: Wants
    reserved: bool = False
    nodes: frozenset[str] | None = None
    """Those that it was asked for; None for our own machine."""
    look_at: float = 0.0
    """When to ask Ray again, on the monotonic clock."""
    reason: Unplaced | None = None


class Placing:
    """The places of all pools of a service, and the pools that wait for one."""

    def __init__(self, config: ServiceConfig, environment: Mapping[str, str]) -> None:
        """`environment` are the variables of processes on a cluster's nodes."""
        self._config = config
        self._nodes = Nodes(environment) if config.ray.address else None
        self._groups = PoolGroups()
        self._wanted: dict[str, Wanted] = {}

    def adopt(self, pool_ids: Collection[str]) -> None:
        """Take over the places of these pools, and give back all others."""
        self._groups.adopt(pool_ids)

    def want(self, pool_id: str, model: str, memory_bytes: int) -> None:
        """Look for a place from now on; see `placed`."""
        self._wanted[pool_id] = Wanted(model, Wants.of(self._config, model, memory_bytes))

    def placed(self) -> Iterator[tuple[str, Wanted]]:
        """Yield the pools that have a place by now, once each."""
        if self._nodes is not None:
            self._nodes.look()
        for pool_id, pool in list(self._wanted.items()):
            if time.monotonic() >= pool.look_at and self._is_placed(pool_id, pool):
                del self._wanted[pool_id]
                yield pool_id, pool

    def forget(self, pool_id: str) -> None:
        """Give a pool's place back."""
        self._wanted.pop(pool_id, None)
        self._groups.remove(pool_id)

    def bundle(self, pool_id: str, bundle: int) -> Any:
        """Return the scheduling strategy for a process in a bundle of a pool that has a place."""
        return self._groups.place(pool_id, bundle)

    def anywhere(self) -> dict[str, str] | None:
        """Return the label selector for a process that needs no bundle; None if every node may be used."""
        return None if self._nodes is None else one_of(self._nodes.usable)

    def waiting(self) -> dict[str, Unplaced]:
        """Return why pools have no place yet, by pool."""
        return {pool_id: pool.reason for pool_id, pool in self._wanted.items() if pool.reason is not None}

    def node_bytes(self) -> dict[str, int]:
        """Return the memory that a cluster's nodes have for pools, by node; empty on our own machine."""
        found = {} if self._nodes is None else self._nodes.usable
        return {node_id: node.memory_bytes for node_id, node in found.items()}

    def node_of(self, pool_id: str) -> str:
        """Return the node on which a cluster placed a pool; empty on our own machine."""
        return "" if self._nodes is None else self._groups.node_of(pool_id)

    def _is_placed(self, pool_id: str, pool: Wanted) -> bool:
        pool.look_at = time.monotonic() + _LOOK_SECONDS
        nodes = None if self._nodes is None else frozenset(self._nodes.usable)
        if pool.nodes != nodes or not pool.reserved:
            # A node that joined, or has answered by now, may have room.
            self._groups.remove(pool_id)
            pool.nodes, pool.reserved = nodes, nodes is None or bool(nodes)
            if pool.reserved:
                self._groups.reserve(pool_id, pool.wants.bundles(self._config), nodes)
        if pool.reserved and self._groups.is_placed(pool_id, _PLACED_SECONDS):
            return True
        found = {} if self._nodes is None else self._nodes.usable
        refusals = "" if self._nodes is None else self._nodes.refusals()
        state = self._groups.why_not_placed(pool_id) if pool.reserved else "no node"
        pool.reason = why_unplaced(state, pool.wants, list(found.values()), refusals)
        return False
