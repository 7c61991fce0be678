"""Which GPUs a model takes: how many ranks and engines it has, and what each needs of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.planning.machines import NodeRoom, Wish
from backend.planning.memory_needs import (
    CONTEXT_BYTES,
    EngineNeeds,
    LearnerNeeds,
    Method,
    engine_needs,
    learner_needs,
    usable_bytes,
)

SMALL = 50_000_000
"""Models with fewer parameters take one GPU unless their operator wishes otherwise: their steps are over
before several ranks have exchanged anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks and engines of a model, before they have GPUs."""

    ranks: int
    engines: int
    tensor_parallel: int
    together: bool
    sleeps: bool
    learner: LearnerNeeds
    engine_bytes: int
    """Of an engine on each of its GPUs."""
    engine_weights: int
    """How much of it is not its cache."""

    @property
    def shared_bytes(self) -> int:
        """Of a GPU with a rank and an engine."""
        if self.sleeps:
            return self.learner.resident + max(self.learner.work, self.engine_bytes)
        return self.learner.total + self.engine_bytes

    @property
    def chunk_bytes(self) -> int:
        """Of each GPU of an engine."""
        return self.shared_bytes if self.together else self.engine_bytes

    @property
    def single_bytes(self) -> int:
        """Of each GPU with a rank only."""
        return self.learner.total

    @property
    def singles(self) -> int:
        """GPUs with a rank only."""
        return max(0, self.ranks - self.engines * self.tensor_parallel) if self.together else self.ranks

    @property
    def gpus(self) -> int:
        """All of its GPUs."""
        return self.engines * self.tensor_parallel + self.singles


def layout_of(
    wish: Wish, *, gpus: int, tensor_parallel: int, sleeps: bool, gpu_bytes: int, tokens: int
) -> Layout:
    """Return the ranks and engines of a model on so many GPUs.

    Args:
        wish: The model.
        gpus: How many it has in all.
        tensor_parallel: GPUs of one engine.
        sleeps: Whether the engine sleeps while the model learns.
        gpu_bytes: The memory of the largest GPU.
        tokens: That a rank computes at a time.
    """
    own, together = wish.placement, wish.placement.together is not False
    if together:
        engines = own.engines or max(1, gpus // tensor_parallel)
        ranks = own.learner.ranks or gpus
    else:
        engines = own.engines or 1
        ranks = own.learner.ranks or max(1, gpus - engines * tensor_parallel)
    engine = engine_of(wish, tensor_parallel)
    least = max(1, int(wish.engine_share * gpu_bytes))
    return Layout(
        ranks=ranks,
        engines=engines,
        tensor_parallel=tensor_parallel,
        together=together,
        sleeps=sleeps and together,
        learner=learner_of(wish, ranks, gpu_bytes, tokens),
        engine_weights=engine.weights,
        engine_bytes=max(engine.total, min(least, engine.weights + _most_cache(wish, engine))),
    )


def learner_of(wish: Wish, ranks: int, gpu_bytes: int, tokens: int) -> LearnerNeeds:
    """Return what each of so many ranks needs."""
    if wish.shape is None:
        return LearnerNeeds(resident=CONTEXT_BYTES + wish.memory_bytes, work=0)
    divides = ranks > 1 and wish.shape.parameters >= wish.placement.learner.divide_from
    divided_by = ranks if divides else 1
    method: Method = "lora"
    if wish.placement.trains == "full":
        method = "full"
    elif wish.placement.trains == "auto":
        full = learner_needs(wish.shape, "full", number_bytes=wish.number_bytes, divided_by=divided_by)
        fits = 2 * full.total <= usable_bytes(gpu_bytes)
        method = "full" if fits and not wish.quantized else "lora"
    return learner_needs(
        wish.shape,
        method,
        number_bytes=wish.number_bytes,
        divided_by=divided_by,
        tokens=tokens,
        quantized=wish.quantized,
    )


def engine_of(wish: Wish, tensor_parallel: int) -> EngineNeeds:
    """Return what an engine needs on each of its GPUs, at least."""
    if wish.shape is None:
        return EngineNeeds(weights=CONTEXT_BYTES + wish.memory_bytes // tensor_parallel, cache=0)
    return engine_needs(
        wish.shape,
        number_bytes=wish.number_bytes,
        tensor_parallel=tensor_parallel,
        quantized=wish.quantized,
    )


_SEQUENCES = 256
"""More at a time are not sampled: a larger cache would stay empty."""


def _most_cache(wish: Wish, engine: EngineNeeds) -> int:
    if wish.shape is None:
        return 1 << 62  # Unknown: the engine has its share.
    per_sequence = wish.shape.context_length * wish.shape.cached_numbers * wish.number_bytes
    return max(engine.cache, _SEQUENCES * per_sequence)


@dataclass(frozen=True, slots=True)
class Chosen:
    """GPUs of one node."""

    node_id: str
    chunks: tuple[tuple[int, ...], ...]
    """Those of each engine."""
    singles: tuple[int, ...]
    """Those with a rank only."""


def choose(rooms: Sequence[NodeRoom], layout: Layout) -> list[Chosen] | None:
    """Choose GPUs, on one node if one has room for all; None if there are too few.

    Args:
        rooms: Nodes that may be used; the first that is taken also gets the pool.
        layout: What is needed.
    """
    counted = sorted(rooms, key=lambda room: len(room.fitting(layout.chunk_bytes)))
    for room in counted:  # The smallest that is enough.
        if found := _choose([room], layout):
            return found
    return _choose(counted[::-1], layout)


def choose_with(first: NodeRoom, others: Sequence[NodeRoom], layout: Layout) -> list[Chosen] | None:
    """Choose GPUs on a node, which gets the pool, and on others, which need no room for it."""
    return _choose([first, *sorted(others, key=lambda room: -len(room.fitting(layout.chunk_bytes)))], layout)


def _choose(rooms: Sequence[NodeRoom], layout: Layout) -> list[Chosen] | None:
    chunks, singles, size = layout.engines, layout.singles, layout.tensor_parallel
    taken: dict[str, list[tuple[int, ...]]] = {}
    for room in rooms:
        fitting = room.fitting(layout.chunk_bytes)
        if not layout.together and layout.chunk_bytes < layout.single_bytes:
            fitting.reverse()  # Leave the emptiest to the ranks.
        number = min(chunks, len(fitting) // size)
        taken[room.machine.node_id] = [
            tuple(sorted(fitting[i * size : (i + 1) * size])) for i in range(number)
        ]
        chunks -= number
    if chunks:
        return None
    found = []
    for room in rooms:
        own = taken[room.machine.node_id]
        used = {gpu for chunk in own for gpu in chunk}
        left = [gpu for gpu in room.fitting(layout.single_bytes) if gpu not in used][:singles]
        singles -= len(left)
        if own or left:
            found.append(Chosen(room.machine.node_id, tuple(own), tuple(sorted(left))))
    return None if singles else found
