"""The resources of each pool: a placement group of Ray with the pool's name.

Its bundles are the parts of the plan that take CPUs or memory, each on the node that the plan chose: first
the pool's own process (with the first rank of its learner, which writes its files), second its environment
workers, then further ranks and engines, sorted by node. The plan itself is kept with the group, so that the
next scheduler knows what is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from backend.planning.machines import Placed

_PREFIX = "pool|"
POOL_BUNDLE, ENV_WORKER_BUNDLE = 0, 1
_PLANS = b"tinkergym-plans"
_NODE_LABEL = "ray.io/node-id"


class PoolGroups:
    """The groups of one service, by pool. Kept by Ray until they are removed, whoever made them."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def reserve(self, pool_id: str, placed: Placed, *, on_nodes: bool) -> None:
        """Ask Ray for the resources of a pool, each on its node; our own Ray has one node."""
        parts = [part for part in placed.parts if part.bundle]
        self._known[pool_id] = placement_group(
            [part.bundle for part in parts],
            strategy="PACK",
            name=_PREFIX + pool_id,
            lifetime="detached",
            bundle_label_selector=[one_of([part.node_id]) for part in parts] if on_nodes else None,
        )
        # After the group: a plan without one would never be found or removed.
        internal_kv._internal_kv_put(_plan_key(pool_id), placed.to_json().encode(), namespace=_PLANS)

    def adopt(self, pool_ids: Collection[str]) -> dict[str, Placed]:
        """Remember the groups of these pools, and remove all others of this service; returns their plans."""
        for name in _names():
            pool_id = name.removeprefix(_PREFIX)
            with contextlib.suppress(ValueError):
                self._known[pool_id] = get_placement_group(name)
        for pool_id in self._known.keys() - set(pool_ids):
            self.remove(pool_id)
        found = {}
        for pool_id in self._known:
            written = internal_kv._internal_kv_get(_plan_key(pool_id), namespace=_PLANS)
            if written is not None:
                found[pool_id] = Placed.from_json(written.decode())
        return found

    def is_placed(self, pool_id: str, seconds: float) -> bool:
        """Whether Ray has found room for a pool, waiting at most that long."""
        return bool(self._known[pool_id].wait(seconds))

    def node_of(self, pool_id: str) -> str:
        """Return Ray's id of the node of a pool's own process; empty before it has a place."""
        group = self._known.get(pool_id)
        placed = {} if group is None else placement_group_table(group)["bundles_to_node_id"]
        return str(placed.get(POOL_BUNDLE) or "")

    def place(self, pool_id: str, bundle: int) -> Any:
        """Return the scheduling strategy for a process in a bundle."""
        group = self._known[pool_id]
        return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)

    def remove(self, pool_id: str) -> None:
        """Give a pool's resources back; Ray ends the processes that still use them."""
        group = self._known.pop(pool_id, None)
        if group is not None:
            _forget_plan(pool_id)
            with contextlib.suppress(Exception):
                remove_placement_group(group)


def one_of(nodes: Collection[str]) -> dict[str, str]:
    """Return the label selector for these nodes."""
    return {_NODE_LABEL: f"in({','.join(sorted(nodes))})"}


def _plan_key(pool_id: str) -> bytes:
    """Return where a pool's plan is kept: Ray's store has no namespaces of services, so the key names it."""
    return f"{ray.get_runtime_context().namespace}|{pool_id}".encode()


def _forget_plan(pool_id: str) -> None:
    with contextlib.suppress(Exception):
        internal_kv._internal_kv_del(_plan_key(pool_id), namespace=_PLANS)


def remove_all() -> None:
    """Remove the groups of all pools of this service."""
    for name in _names():
        with contextlib.suppress(ValueError):  # It is another service's.
            remove_placement_group(get_placement_group(name))
            _forget_plan(name.removeprefix(_PREFIX))


def _names() -> list[str]:
    """Return the names of the cluster's groups; those of other services cannot be had by name here."""
    table: Mapping[str, Any] = placement_group_table()
    found = (entry for entry in table.values() if entry["state"] != "REMOVED")
    return [entry["name"] for entry in found if entry["name"].startswith(_PREFIX)]
