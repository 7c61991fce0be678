"""The GPUs of a cluster's nodes. The service holds those that are free when a node joins, until it stops.

Its plan divides them between models by memory, which Ray cannot: a fraction of a GPU has no number there, and
two of them would share one GPU while others are free.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backend.processes.children import die_with_parent
from backend.processes.machine_gpus import machine_gpus

_log = logging.getLogger(__name__)
HOLDER = "gpus|"
"""The beginning of the names of the actors that hold GPUs."""


class GpuHolder:
    """Runs in an actor: has a node's GPUs, and computes nothing."""

    def __init__(self) -> None:
        die_with_parent()

    def gpus(self, gpu_bytes: int | None) -> dict[str, int]:
        """Return the memory of each GPU in bytes, by the name that processes use.

        Args:
            gpu_bytes: The memory of each, where the machine does not tell.
        """
        found = machine_gpus()
        if found or gpu_bytes is None:
            return found
        return {str(number): gpu_bytes for number in sorted(ray.get_gpu_ids())}


class NodeGpus:
    """Holds the GPUs of nodes."""

    def __init__(self, environment: Mapping[str, str], gpu_bytes: int | None) -> None:
        self._environment, self._gpu_bytes = dict(environment), gpu_bytes
        self._holders: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._known: dict[str, dict[str, int]] = {}

    def are_known(self, node_id: str) -> bool:
        """Whether a node said which GPUs it has."""
        return node_id in self._known

    def of(self, node_id: str) -> dict[str, int]:
        """Return the memory of a node's GPUs in bytes, by name; empty as long as it is not known."""
        return self._known.get(node_id, {})

    def look(self, nodes: Mapping[str, int]) -> None:
        """Hold the free GPUs of nodes that joined, and forget those that left.

        Args:
            nodes: The number of GPUs of each node that may be used and has some.
        """
        for known in (self._holders, self._asked, self._known):
            for node_id in known.keys() - nodes.keys():
                del known[node_id]
        for node_id in nodes.keys() - self._holders.keys():
            self._hold(node_id)
        for node_id, promise in list(self._asked.items()):
            if ray.wait([promise], timeout=0)[0]:
                del self._asked[node_id]
                self._note(node_id, promise)

    def _hold(self, node_id: str) -> None:
        name = HOLDER + node_id
        try:
            self._holders[node_id] = ray.get_actor(name)  # Of the scheduler before this one.
        except ValueError:
            free = int(ray._private.state.available_resources_per_node().get(node_id, {}).get("GPU", 0))
            if not free:  # Others have them all; asked again at the next look.
                self._known[node_id] = {}
                return
            holder = ray.remote(max_restarts=0)(GpuHolder).options(
                name=name,
                lifetime="detached",
                num_cpus=0,
                num_gpus=free,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                runtime_env={"env_vars": self._environment},
            )
            self._holders[node_id] = holder.remote()
        self._asked[node_id] = self._holders[node_id].gpus.remote(self._gpu_bytes)

    def _note(self, node_id: str, promise: Any) -> None:
        try:
            self._known[node_id] = ray.get(promise)
        except ray.exceptions.RayError as error:
            _log.warning("the GPUs of node %s cannot be held: %s", node_id, error)
            with contextlib.suppress(Exception):
                ray.kill(self._holders.pop(node_id), no_restart=True)
            return
        if not self._known[node_id]:  # Its CPUs are.
            _log.warning("the GPUs of node %s are not used, their memory is unknown: set gpu_bytes", node_id)
