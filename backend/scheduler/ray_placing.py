"""Where pools run: each waits here until the plan has a place for it and Ray gives it.

On a cluster the plan decides about CPUs, memory and GPUs of its nodes; on our own machine about its GPUs,
while `pools_memory` decides about the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.admission.model_wishes import impossible_on, own_machine, wish_of
from backend.config import ServiceConfig
from backend.planning.idle_ends import ends_for
from backend.planning.machines import Machine, NotPlaced, Part, Placed, Wish
from backend.planning.model_plan import plan
from backend.planning.pool_place import PoolPlace
from backend.processes.machine_gpus import READ_SECONDS, known_gpus
from backend.scheduler.ray_groups import PoolGroups, one_of
from backend.scheduler.ray_nodes import Nodes
from backend.scheduler.unplaced import JOIN_SECONDS, Unplaced, why_unplaced

_LOOK_SECONDS = 1.0
"""How often a place is looked for again."""
_PLACED_SECONDS = 0.2
"""How long a new pool's group is waited for, which takes milliseconds where there is room."""
_PLAN_SECONDS = 10.0
"""A place that Ray has not given after this long is planned anew."""
_LAST_LOOK_SECONDS = 2.0
"""How long it is waited for then: a busy machine may have given it, and be late with every answer. All pools
of a look share this, because the scheduler does nothing else meanwhile."""


@dataclass(slots=True)
class Wanted:
    """A pool that is to start as soon as there is room for it."""

    model: str
    wish: Wish
    since: float
    placed: Placed | None = None
    """What Ray was asked for."""
    asked_at: float = 0.0
    reason: Unplaced | None = None


class Placing:
    """The places of all pools of a service, and the pools that wait for one."""

    def __init__(
        self,
        config: ServiceConfig,
        environment: Mapping[str, str],
        *,
        nodes: Nodes | None = None,
        groups: PoolGroups | None = None,
        gpus: Callable[[], dict[str, int] | None] = known_gpus,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know no pool yet.

        Args:
            config: The service's settings.
            environment: The variables of processes on a cluster's nodes.
            nodes: The cluster's nodes; the default asks Ray, if there is a cluster.
            groups: The resources of pools; the default asks Ray.
            gpus: Returns the memory of our own machine's GPUs by name; None if that is not known now.
            monotonic: Monotonic seconds.
        """
        self._config, self._monotonic = config, monotonic
        own = Nodes(environment, config.gpu_bytes) if config.ray.address else None
        self._nodes = nodes if nodes is not None else own
        self._read_gpus, self._read_at = gpus, 0.0
        self._own_gpus: dict[str, int] | None = {}
        self._own: list[Machine] = []
        if self._nodes is None:
            self._read_own()
        self._groups = groups or PoolGroups()
        self._wanted: dict[str, Wanted] = {}
        self._placed: dict[str, Placed] = {}
        self._look_at = 0.0
        self._planned_anew = False
        """Whether `ends_for_room` has not been asked since the last plan."""
        self._nodes_seen: frozenset[tuple[str, int, int]] = frozenset()
        self._impossible_on: frozenset[tuple[str, int, int]] = frozenset()
        self._impossible: dict[str, str] = {}
        self._impossible_is_due = False
        self._nodes_changed_at = 0.0

    @property
    def machines(self) -> list[Machine]:
        """The nodes that may be used."""
        return self._own if self._nodes is None else self._nodes.machines

    def adopt(self, pool_ids: Collection[str]) -> None:
        """Take over the places of these pools, and give back all others."""
        self._placed = self._groups.adopt(pool_ids)

    def want(self, pool_id: str, model: str, memory_bytes: int) -> None:
        """Look for a place from now on; see `placed`."""
        wish = wish_of(self._config, model, pool_id, memory_bytes=memory_bytes)
        self._wanted[pool_id] = Wanted(model, wish, self._monotonic())
        self._look_at = 0.0

    def placed(self) -> Iterator[tuple[str, str, Placed]]:
        """Yield the pools that have a place by now, with their models, once each."""
        if self._nodes is not None:
            self._nodes.look()
        if not self._wanted or self._monotonic() < self._look_at:
            return
        self._look_at = self._monotonic() + _LOOK_SECONDS
        self._plan()
        asked = [(one, pool, pool.placed) for one, pool in self._wanted.items() if pool.placed is not None]
        left = _LAST_LOOK_SECONDS
        for number, (pool_id, pool, placed) in enumerate(asked):
            before = self._monotonic()
            share = left / (len(asked) - number)
            # Looks may come late: from here on each may be the last before the place is planned anew.
            is_last = before - pool.asked_at >= _PLAN_SECONDS - 2 * _LOOK_SECONDS
            is_placed = self._groups.is_placed(pool_id, share if is_last else min(share, _PLACED_SECONDS))
            left = max(0.0, left - (self._monotonic() - before))
            if is_placed:
                self._placed[pool_id] = placed
                del self._wanted[pool_id]
                yield pool_id, pool.model, placed

    def forget(self, pool_id: str) -> None:
        """Give a pool's place back."""
        self._wanted.pop(pool_id, None)
        self._placed.pop(pool_id, None)
        self._groups.remove(pool_id)
        self._look_at = 0.0

    def bundle(self, pool_id: str, bundle: int) -> Any:
        """Return the scheduling strategy for a process in a bundle of a pool that has a place."""
        return self._groups.place(pool_id, bundle)

    def anywhere(self) -> dict[str, str] | None:
        """Return the label selector for a process that needs no bundle; None if every node may be used."""
        return None if self._nodes is None else one_of(self._nodes.usable)

    def place(self, pool_id: str) -> PoolPlace:
        """Return where the processes of a placed pool run; nowhere while one of its nodes is not known."""
        placed, known = self._placed.get(pool_id), {one.node_id: len(one.gpus) for one in self.machines}
        if placed is None or any(
            gpu >= known.get(part.node_id, 0) for part in placed.parts for gpu in part.gpus
        ):
            return PoolPlace()
        return self.place_of(placed)

    def place_of(self, placed: Placed) -> PoolPlace:
        """Return where a pool's processes run."""
        sizes = {machine.node_id: machine.gpus for machine in self.machines}
        return PoolPlace.of(placed, names=self._gpu_names, sizes=sizes)

    def _gpu_names(self, part: Part) -> list[str]:
        names = list(self._own_gpus or ()) if self._nodes is None else self._nodes.gpu_names(part.node_id)
        return [names[gpu] for gpu in part.gpus]

    def waiting(self) -> dict[str, Unplaced]:
        """Return why pools have no place yet, by pool."""
        return {pool_id: pool.reason for pool_id, pool in self._wanted.items() if pool.reason is not None}

    def ends_for_room(self, idle: Sequence[str]) -> list[str]:
        """Return which of these pools to end so that one that waits has a place; see `ProcessRunner`."""
        if not idle or not self._planned_anew:
            return []
        self._planned_anew = False
        wishes = [pool.wish for pool in self._wanted.values() if pool.placed is None]
        return ends_for(self.machines, wishes, self._taken(), idle)

    def _taken(self) -> list[Placed]:
        """Return what pools have, and what Ray was asked for."""
        asked = [pool.placed for pool in self._wanted.values() if pool.placed is not None]
        return [*self._placed.values(), *asked]

    def impossible(self) -> dict[str, str]:
        """Return why models of the settings have no place on these nodes, whatever else runs there."""
        machines, now = self.machines, self._monotonic()
        seen = _seen(machines)
        if seen != self._impossible_on:
            self._impossible, self._impossible_on, self._nodes_changed_at = {}, seen, now
            self._impossible_is_due = True
        # Nodes of a cluster join one after the other.
        settled = not self._nodes or now - self._nodes_changed_at >= JOIN_SECONDS
        if self._impossible_is_due and settled and self._own_gpus is not None:
            self._impossible, self._impossible_is_due = impossible_on(self._config, machines), False
        return self._impossible

    def node_bytes(self) -> dict[str, int]:
        """Return the memory that a cluster's nodes have for pools, by node; empty on our own machine."""
        found = {} if self._nodes is None else self._nodes.usable
        return {node_id: node.memory_bytes for node_id, node in found.items()}

    def rank_bytes(self, pool_id: str) -> dict[str, int]:
        """Return the memory that is planned for a pool's further ranks, by node."""
        placed, found = self._placed.get(pool_id), dict[str, int]()
        for part in () if placed is None else placed.of("rank"):
            found[part.node_id] = found.get(part.node_id, 0) + part.memory_bytes
        return found

    def node_of(self, pool_id: str) -> str:
        """Return the node on which a cluster placed a pool; empty on our own machine."""
        return "" if self._nodes is None else self._groups.node_of(pool_id)

    def _plan(self) -> None:
        """Ask Ray for what the plan says, and note why the others wait."""
        self._look_for_own_gpus()
        machines = self.machines
        seen = _seen(machines)
        now, changed = self._monotonic(), seen != self._nodes_seen
        self._nodes_seen, self._planned_anew, not_given = seen, True, set()
        for pool_id, pool in self._wanted.items():
            late = now - pool.asked_at >= _PLAN_SECONDS
            # Ray has not given this place. Among other nodes, or by now, another one may be better.
            if pool.placed is not None and (changed or late):
                self._groups.remove(pool_id)
                pool.placed = None
                not_given |= {pool_id} if late else set()
        wishes = [pool.wish for pool in self._wanted.values() if pool.placed is None]
        refusals = "" if self._nodes is None else self._nodes.refusals()
        passed = self._config.passed_seconds
        plans = plan(
            machines,
            wishes,
            self._taken(),
            passed_long=[one for one, pool in self._wanted.items() if now - pool.since > passed],
            stays=[one for one, placed in self._placed.items() if placed.model in self._config.preload],
        )
        for pool_id, found in plans.items():
            pool = self._wanted[pool_id]
            if isinstance(found, NotPlaced):
                known = self._own_gpus is not None or not pool.wish.placement.gpus
                pool.reason = why_unplaced(found, nodes=machines, refusals=refusals, all_known=known)
                continue
            not_yet = why_unplaced(None, nodes=machines, refusals=refusals)
            pool.reason = not_yet if pool_id in not_given else None
            pool.placed, pool.asked_at = found, now
            self._groups.reserve(pool_id, found, on_nodes=self._nodes is not None)

    def _look_for_own_gpus(self) -> None:
        """Read our own machine's GPUs again while they are unknown, or a model waits for one."""
        if self._nodes is not None or self._own_gpus or self._monotonic() - self._read_at < READ_SECONDS:
            return
        if self._own_gpus is None or any(pool.wish.placement.gpus for pool in self._wanted.values()):
            self._read_own()

    def _read_own(self) -> None:
        self._own_gpus, self._read_at = self._read_gpus(), self._monotonic()
        self._own = [own_machine(self._own_gpus or {})]


def _seen(machines: Collection[Machine]) -> frozenset[tuple[str, int, int]]:
    """Return what makes another plan possible: nodes, and how many of their GPUs are known or others'."""
    return frozenset((one.node_id, len(one.gpus), one.gpus_of_others) for one in machines)
