"""The resources of each pool: a placement group of Ray with the pool's name.

The first bundle is the pool's own process (with the first rank of its learner, which writes its files), the
second is for its environment workers, and each further rank has one. Ray spreads bundles over several nodes
only if one has no room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_PREFIX = "pool|"
POOL_BUNDLE, ENV_WORKER_BUNDLE, FIRST_RANK_BUNDLE = 0, 1, 2
_NODE_LABEL = "ray.io/node-id"


class PoolGroups:
    """The groups of one service, by pool. Kept by Ray until they are removed, whoever made them."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def reserve(self, pool_id: str, bundles: list[dict[str, float]], nodes: Collection[str] | None) -> None:
        """Ask Ray for the resources of a pool; on these nodes only, if any are given."""
        only = None if nodes is None else one_of(nodes)
        self._known[pool_id] = placement_group(
            bundles,
            strategy="PACK",
            name=_PREFIX + pool_id,
            lifetime="detached",
            bundle_label_selector=None if only is None else [only] * len(bundles),
        )

    def adopt(self, pool_ids: Collection[str]) -> None:
        """Remember the groups of these pools, and remove all others of this service."""
        for name in _names():
            pool_id = name.removeprefix(_PREFIX)
            with contextlib.suppress(ValueError):
                self._known[pool_id] = get_placement_group(name)
        for pool_id in self._known.keys() - set(pool_ids):
            self.remove(pool_id)

    def is_placed(self, pool_id: str, seconds: float) -> bool:
        """Whether Ray has found room for a pool, waiting at most that long."""
        return bool(self._known[pool_id].wait(seconds))

    def why_not_placed(self, pool_id: str) -> str:
        """Return Ray's word for why there is no room: `INFEASIBLE`, `NO_RESOURCES`, or what it is doing."""
        entry = placement_group_table(self._known[pool_id])
        return str(entry["stats"].get("scheduling_state") or entry["state"])

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
            with contextlib.suppress(Exception):
                remove_placement_group(group)


def one_of(nodes: Collection[str]) -> dict[str, str]:
    """Return the label selector for these nodes."""
    return {_NODE_LABEL: f"in({','.join(sorted(nodes))})"}


def remove_all() -> None:
    """Remove the groups of all pools of this service."""
    for name in _names():
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


def _names() -> list[str]:
    table: Mapping[str, Any] = placement_group_table()
    found = (entry for entry in table.values() if entry["state"] != "REMOVED")
    return [entry["name"] for entry in found if entry["name"].startswith(_PREFIX)]
