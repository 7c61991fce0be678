"""Which nodes of a cluster may run our processes: those with the same Python, torch and tinkergym."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backend.planning.machines import Machine
from backend.processes.memory import resident_bytes
from backend.scheduler.node_gpus import NodeGpus
from backend.scheduler.process_runner import OnNode
from backend.scheduler.ray_gpus import GpuHolders
from tinkergym import __version__

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster that answered."""

    address: str
    cpus: float
    memory_bytes: int
    """What the operator lets Ray give to processes there."""
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    """How many the operator lets Ray give."""
    refused: str = ""
    """Why it is not used."""

    @property
    def refusal(self) -> str:
        """The sentence about it."""
        return f"{self.address} is not used ({self.refused})"


class Nodes:
    """Asks each node that joins for its versions; one that has not answered is not used."""

    def __init__(self, environment: Mapping[str, str], gpu_bytes: int | None) -> None:
        """Know no node yet.

        Args:
            environment: The variables of every process that is started there.
            gpu_bytes: The memory of each GPU, where it cannot be asked for.
        """
        self._environment = dict(environment)
        self._gpus = NodeGpus(GpuHolders(self._environment, gpu_bytes))
        self._own = versions()
        self._look_at = 0.0
        self._asked: dict[str, tuple[Node, Any]] = {}
        self.answered: dict[str, Node] = {}
        """By Ray's id of the node."""

    @property
    def usable(self) -> dict[str, Node]:
        """The nodes that may be used."""
        return {node_id: node for node_id, node in self.answered.items() if not node.refused}

    @property
    def machines(self) -> list[Machine]:
        """The same for a plan, with their GPUs as far as these are known."""
        return [
            Machine(
                node_id=node_id,
                cpus=node.cpus,
                memory_bytes=node.memory_bytes,
                gpus=tuple(self._gpus.of(node_id).values()),
                gpus_of_others=self._gpus.of_others(node_id),
                labels=node.labels,
            )
            for node_id, node in self.usable.items()
            if not node.gpus or self._gpus.are_known(node_id)
        ]

    def gpu_names(self, node_id: str) -> list[str]:
        """Return what a node's processes call its GPUs, in the order of its `Machine`."""
        return list(self._gpus.of(node_id))

    def look(self) -> None:
        """Notice nodes that joined, answered or left, every few seconds."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        alive = {entry["NodeID"]: entry for entry in ray.nodes() if entry["Alive"]}
        for known in (self._asked, self.answered):
            for node_id in known.keys() - alive.keys():
                del known[node_id]
        for node_id in alive.keys() - self._asked.keys() - self.answered.keys():
            self._asked[node_id] = self._ask(node_id, alive[node_id])
        for node_id, (node, promise) in list(self._asked.items()):
            # Without waiting: a node that hangs does not hold up the others.
            if ray.wait([promise], timeout=0)[0]:
                del self._asked[node_id]
                self.answered[node_id] = replace(node, refused=self._why_refused(promise))
                if self.answered[node_id].refused:
                    _log.warning("%s", self.answered[node_id].refusal)
        self._gpus.look({node_id: node.gpus for node_id, node in self.usable.items() if node.gpus})

    def refusals(self) -> str:
        """Return which nodes are not used and why; empty if all are."""
        return ", ".join(node.refusal for node in self.answered.values() if node.refused)

    def _ask(self, node_id: str, entry: Mapping[str, Any]) -> tuple[Node, Any]:
        resources = entry["Resources"]
        node = Node(
            entry["NodeManagerAddress"],
            resources.get("CPU", 0.0),
            int(resources.get("memory", 0)),
            entry.get("Labels") or {},
            int(resources.get("GPU", 0)),
        )
        # With no CPU, it also runs on a node whose CPUs are all taken.
        task = ray.remote(num_cpus=0, max_retries=0)(versions).options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": self._environment},
        )
        return node, task.remote()

    def _why_refused(self, promise: Any) -> str:
        try:
            found = ray.get(promise)
        except ray.exceptions.RayError as error:
            with contextlib.suppress(AttributeError):
                error = error.cause
            return f"asked for its versions, it failed with {type(error).__name__}"
        wrong = [
            f"{name} {found.get(name)} there, {own} here"
            for name, own in self._own.items()
            if found.get(name) != own
        ]
        return "; ".join(wrong)


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and tinkergym on this machine."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "missing"
    return {"Python": platform.python_version(), "torch": torch, "tinkergym": __version__}


def own_address() -> str:
    """Return the address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())


def own_memory(others: Sequence[int] = ()) -> OnNode:
    """Return Ray's id of this node, and the memory of this process and of others here, with their children.

    Args:
        others: The ids of processes that are not its children.
    """
    own = resident_bytes() + sum(map(resident_bytes, others))
    return ray.get_runtime_context().get_node_id(), own


def head_answers(seconds: int) -> bool:
    """Whether the cluster's head answers a question within this time."""
    client = ray._private.worker.global_worker.gcs_client
    try:
        client.internal_kv_exists(b"tinkergym", None, timeout=seconds)
    except Exception as error:
        _log.warning("the cluster's head does not answer: %s", error)
        return False
    return True
