"""The actors that hold GPUs of a cluster's nodes for `node_gpus`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backend.processes.children import die_with_parent
from backend.processes.machine_gpus import known_gpus

HOLDER = "gpus|"
"""The beginning of the names of the actors that hold GPUs."""


class GpuHolder:
    """Runs in an actor: has a node's GPUs, and computes nothing."""

    def __init__(self) -> None:
        die_with_parent()

    def gpus(self, gpu_bytes: int | None) -> dict[str, int] | None:
        """Return the memory of each GPU in bytes, by the name that processes use; None if nvidia-smi failed.

        Args:
            gpu_bytes: The memory of each, where the machine does not tell.
        """
        found = known_gpus()
        if found or gpu_bytes is None:
            return found
        return {str(number): gpu_bytes for number in sorted(ray.get_gpu_ids())}


class GpuHolders:
    """Starts the actors that hold GPUs, or finds those of the scheduler before this one."""

    def __init__(self, environment: Mapping[str, str], gpu_bytes: int | None) -> None:
        self._environment, self._gpu_bytes = dict(environment), gpu_bytes

    def free(self, node_id: str) -> int:
        """Return how many GPUs of a node nobody holds."""
        return int(ray._private.state.available_resources_per_node().get(node_id, {}).get("GPU", 0))

    def found(self, node_id: str, number: int) -> Future[dict[str, int] | None] | None:
        """Ask the holder with this number for its GPUs; None if there is none."""
        try:
            return self._asked(ray.get_actor(_name(node_id, number)))
        except ValueError:
            return None

    def hold(self, node_id: str, number: int, gpus: int) -> Future[dict[str, int] | None]:
        """Hold some GPUs of a node, and return their memory in bytes by the name that processes use."""
        holder = ray.remote(max_restarts=0)(GpuHolder).options(
            name=_name(node_id, number),
            # It outlives this scheduler: the next one finds the GPUs held, and no other program takes them.
            lifetime="detached",
            num_cpus=0,
            num_gpus=gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": self._environment},
        )
        return self._asked(holder.remote())

    def give_back(self, node_id: str, number: int) -> None:
        """End a holder."""
        with contextlib.suppress(Exception):
            ray.kill(ray.get_actor(_name(node_id, number)), no_restart=True)

    def _asked(self, holder: Any) -> Future[dict[str, int] | None]:
        return holder.gpus.remote(self._gpu_bytes).future()  # type: ignore[no-any-return]


def _name(node_id: str, number: int) -> str:
    return HOLDER + (f"{node_id}|{number}" if number else node_id)
