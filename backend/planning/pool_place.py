"""The place of a pool as its processes need it: bundles, and what each calls its GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pydantic import TypeAdapter

from backend.planning.machines import Part, Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Where a rank or an engine runs."""

    bundle: int
    """Of the pool's placement group."""
    node_id: str = ""
    cpus: float = 0.0
    """What it asks Ray for."""
    memory_bytes: int = 0
    gpus: tuple[str, ...] = ()
    """Its `CUDA_VISIBLE_DEVICES`; empty on a CPU."""
    gpu_bytes: int = 0
    """Its memory on each of them."""
    gpu_share: float = 0.0
    """The same as a fraction."""
    work_bytes: int = 0
    """How much of `gpu_bytes` is for a rank's activations, or an engine's cache."""
    merged_adapters: int | None = None
    """See `Part`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlace:
    """Where the processes of a pool run."""

    ranks: tuple[ProcessPlace, ...] = field(default_factory=tuple)
    """All ranks of the learner, if there are several or they have GPUs."""
    engines: tuple[ProcessPlace, ...] = field(default_factory=tuple)
    """All engines, if there are several or they have GPUs. The first belongs to the pool's process if it is
    on the same node."""
    sleeps: bool = False
    """See `Placed`."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """What the pool's own process may see: the GPUs of the first rank and of the first engine."""
        own = [each for each in (*self.ranks[:1], *self.engines[:1]) if each.node_id == self._node_id]
        return tuple(dict.fromkeys(gpu for each in own for gpu in each.gpus))

    @property
    def engine_devices(self) -> tuple[str, ...]:
        """The devices of the first engine in the pool's process, among what that sees."""
        own = self.gpus
        numbers = [own.index(gpu) for gpu in (self.engines[0].gpus if self.engines else ()) if gpu in own]
        if len(numbers) > 1:
            return tuple(f"cuda:{number}" for number in numbers)
        # Without a number for the first, which is torch's default.
        return (f"cuda:{numbers[0]}",) if any(numbers) else ("cuda",)

    @property
    def _node_id(self) -> str:
        return self.ranks[0].node_id if self.ranks else ""

    @classmethod
    def of(
        cls, placed: Placed, *, names: Callable[[Part], Sequence[str]], sizes: Mapping[str, Sequence[int]]
    ) -> PoolPlace:
        """Return the place of a planned pool.

        Args:
            placed: The plan.
            names: Returns what a part's process calls its GPUs.
            sizes: The memory of each node's GPUs, in bytes.
        """
        ranks, engines, (pool,) = placed.of("rank"), placed.of("engine"), placed.of("pool")
        # The last rank: the first one's CPUs are counted with the pool's.
        asked = ranks[-1].cpus if ranks else 0.0

        def place(part: Part, cpus: float) -> ProcessPlace:
            size = min((sizes[part.node_id][gpu] for gpu in part.gpus), default=0)
            return ProcessPlace(
                bundle=placed.bundle_of(part),
                node_id=part.node_id,
                cpus=cpus,
                memory_bytes=part.memory_bytes,
                gpus=tuple(names(part)),
                gpu_bytes=part.gpu_bytes,
                gpu_share=part.gpu_bytes / size if size else 0.0,
                work_bytes=part.work_bytes,
                merged_adapters=part.merged_adapters,
            )

        found = [place(rank, asked) for rank in ranks]
        if ranks and ranks[0].number:  # On CPUs the first is part of the pool.
            found.insert(0, ProcessPlace(bundle=0, node_id=pool.node_id, cpus=asked))
        sampling = [place(engine, engine.cpus) for engine in engines]
        if engines and engines[0].number:
            sampling.insert(0, ProcessPlace(bundle=0, node_id=pool.node_id))
        return cls(ranks=tuple(found), engines=tuple(sampling), sleeps=placed.sleeps)

    def of_engine(self, number: int) -> PoolPlace:
        """Return the place of an engine host alone."""
        return PoolPlace(engines=(replace(self.engines[number], node_id=""),))

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PoolPlace:
        """Read what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)
