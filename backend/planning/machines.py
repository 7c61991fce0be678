"""What a plan speaks of: nodes, wishes, and the parts of a placed model. Bytes and CPUs; no processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from backend.compute.supported_models import Quantization
from backend.planning.memory_needs import usable_bytes
from backend.planning.model_shape import ModelShape
from backend.planning.wishes import ModelPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node that may run models."""

    node_id: str
    cpus: float
    memory_bytes: int
    gpus: tuple[int, ...] = ()
    """The memory of each GPU, in bytes."""
    gpus_of_others: int = 0
    """GPUs that other programs hold now, and may give back."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A model that needs a place."""

    name: str
    """Of the place: a pool's id, or the model's name."""
    model: str
    placement: ModelPlacement
    shape: ModelShape | None
    """None for a model whose files are not here yet."""
    number_bytes: int = 4
    """Of the number format of models."""
    quantized: Quantization = ""
    """The format of the linear layers' weights, if it is another."""
    teacher_bytes: int = 0
    """Memory of its teachers on other base models, on the GPU of each rank."""
    keeps_full_weights: bool = False
    """Whether policies of all parameters wait for vLLM on its GPUs, besides its share."""
    engine_share: float = 0.0
    """Fraction of a GPU's memory that an engine takes for weights and cache, if the model has use for it."""
    cpus: float = 1.0
    """CPUs of the pool's process, which runs its jobs and the first rank."""
    memory_bytes: int = 0
    """Memory of the pool's process, and of each further rank or engine."""
    rank_cpus: float = 1.0
    """CPUs of each further rank or engine."""
    gpu_cpus: float = 1.0
    """CPUs of each of its processes on GPUs, unless its placement names those of the pool's."""
    env_worker_cpus: float = 0.0
    """CPUs of all its environment workers."""


PartKind = Literal["pool", "env_workers", "rank", "engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of a placed model, or all its environment workers."""

    kind: PartKind
    number: int
    """Of the rank or engine. The pool is rank 0 and engine 0, unless they are listed themselves."""
    node_id: str
    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: tuple[int, ...] = ()
    """Which of the node's."""
    gpu_bytes: int = 0
    """Its memory on each of these GPUs."""
    work_bytes: int = 0
    """How much of it is for a rank's activations, or an engine's cache."""
    merged_adapters: int | None = None
    """Adapters whose merged weights an engine keeps, if that is planned."""

    @property
    def bundle(self) -> dict[str, float]:
        """What it asks Ray for; empty for the first rank and engine, which are in the pool's."""
        wanted = {"CPU": self.cpus, "memory": float(self.memory_bytes)}
        return {name: amount for name, amount in wanted.items() if amount}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a model runs."""

    name: str
    model: str
    parts: tuple[Part, ...]
    """The pool first, its environment workers second; then ranks and engines, sorted by node."""
    claims: tuple[tuple[str, int, int], ...] = ()
    """(node, GPU, bytes): what is taken of each GPU."""
    sleeps: bool = False
    """Whether learner and engine fit only in turns: the engine sleeps while a job learns."""

    def of(self, kind: PartKind) -> tuple[Part, ...]:
        """Return the parts of a kind, by number."""
        return tuple(sorted((p for p in self.parts if p.kind == kind), key=lambda part: part.number))

    @property
    def gpus(self) -> int:
        """How many GPUs it uses."""
        return len(self.claims)

    def bundle_of(self, part: Part) -> int:
        """Return the number of the bundle with a part's resources: its own, or else the pool's."""
        own = [each for each in self.parts if each.bundle]
        return own.index(part) if part.bundle else 0

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Placed:
        """Read what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """Why a model has no place."""

    needs: str = ""
    """What it needs, with numbers; empty if it lacks something else."""
    largest: str = ""
    """What the largest node or GPU has of that."""
    others: tuple[str, ...] = ()
    """What else there is."""
    forever: bool
    """Whether it had none on these nodes even if nothing else ran there."""
    holders: tuple[tuple[str, int], ...] = ()
    """(name, GPUs) of the placed models on nodes that it could use."""

    @property
    def reason(self) -> str:
        """Everything in one sentence."""
        needs = (f"needs {self.needs}",) if self.needs else ()
        free = "" if self.forever else " free"
        largest = (f"the largest{free} has {self.largest}",) if self.largest else ()
        return ", ".join((*needs, *largest, *self.others))


@dataclass(slots=True)
class NodeRoom:
    """What is left of a node."""

    machine: Machine
    cpus: float
    memory_bytes: int
    gpus: list[int]
    """Bytes left of each GPU."""

    @classmethod
    def of(cls, machine: Machine) -> NodeRoom:
        """Return the whole of a node."""
        usable = [usable_bytes(gpu) for gpu in machine.gpus]
        return cls(machine, machine.cpus, machine.memory_bytes, usable)

    def fitting(self, needed: int) -> list[int]:
        """Return the GPUs with that much left, the emptiest first."""
        found = [gpu for gpu, left in enumerate(self.gpus) if left >= needed]
        return sorted(found, key=lambda gpu: (-self.gpus[gpu], gpu))

    def has(self, cpus: float, memory_bytes: int) -> bool:
        """Whether a process fits into memory next to the GPU processes."""
        # Sums of fractions of CPUs lose their last digits.
        return self.cpus + 1e-6 >= cpus and self.memory_bytes >= memory_bytes

    def copy(self) -> NodeRoom:
        """Return an independent copy."""
        return NodeRoom(self.machine, self.cpus, self.memory_bytes, list(self.gpus))


Rooms = dict[str, NodeRoom]


def rooms_of(machines: Sequence[Machine], held: Iterable[Placed] = ()) -> Rooms:
    """Return what placed models leave of nodes; parts on other nodes are ignored."""
    rooms = {machine.node_id: NodeRoom.of(machine) for machine in machines}
    for placed in held:
        take(rooms, placed)
    return rooms


def take(rooms: Rooms, placed: Placed) -> None:
    """Subtract a placed model."""
    for part in placed.parts:
        if part.node_id in rooms:
            rooms[part.node_id].cpus -= part.cpus
            rooms[part.node_id].memory_bytes -= part.memory_bytes
    for node_id, gpu, size in placed.claims:
        # A plan of an earlier moment may name a GPU that is not known now.
        if node_id in rooms and gpu < len(rooms[node_id].gpus):
            rooms[node_id].gpus[gpu] -= size
