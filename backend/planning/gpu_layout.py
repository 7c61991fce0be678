"""Which GPUs a model takes: how many ranks and engines it has, and what each needs of its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from backend.planning.machines import NodeRoom, Wish
from backend.planning.memory_needs import (
    CONTEXT_BYTES,
    MERGED_ADAPTERS,
    WORK_TOKENS,
    EngineNeeds,
    LearnerNeeds,
    Method,
    engine_needs,
    learner_needs,
    policy_bytes,
    usable_bytes,
    waiting_bytes,
)

SMALL = 50_000_000
"""Models with fewer parameters take one GPU unless their operator wishes otherwise: their steps are over
before several ranks have exchanged anything."""


@dataclass(frozen=True, slots=True)
class MemorySavings:
    """What a model does with less memory than would be good for its speed."""

    tokens: int
    """That a rank computes at a time."""
    sleeps: bool
    """Whether the engine sleeps while the model learns."""
    merged: int | None
    """Adapters with merged weights in an engine; None for the engine's own number."""


def savings_to_try(wish: Wish, tensor_parallel: int) -> list[MemorySavings]:
    """Return what to try, the fastest first."""
    kept: tuple[int | None, ...] = (0,)  # Not into weights of few bits.
    if wish.shape is None:
        kept = (None,)
    elif _has_own_policies(wish, tensor_parallel) and not wish.quantized:
        kept = MERGED_ADAPTERS
    return [MemorySavings(*each) for each in product(WORK_TOKENS, (False, True), kept)]


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
    engine_asleep: int
    """What it keeps while it sleeps."""
    engine_beside: int
    """What is kept for it at all times, outside its process."""
    merged: int | None
    """Adapters with merged weights in it; None for its own number."""

    @property
    def shared_bytes(self) -> int:
        """Of a GPU with a rank and an engine."""
        if self.sleeps:
            most = max(self.learner.work + self.engine_asleep, self.engine_bytes)
            return self.learner.resident + most + self.engine_beside
        return self.learner.total + self.engine_bytes + self.engine_beside

    @property
    def chunk_bytes(self) -> int:
        """Of each GPU of an engine."""
        return self.shared_bytes if self.together else self.engine_bytes + self.engine_beside

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
    wish: Wish, *, gpus: int, tensor_parallel: int, savings: MemorySavings, gpu_bytes: int
) -> Layout:
    """Return the ranks and engines of a model on so many GPUs.

    Args:
        wish: The model.
        gpus: How many it has in all.
        tensor_parallel: GPUs of one engine.
        savings: How it saves memory.
        gpu_bytes: The memory of the largest GPU.
    """
    own, together = wish.placement, wish.placement.together is not False
    if together:
        engines = own.engines or max(1, gpus // tensor_parallel)
        ranks = own.learner.ranks or gpus
    else:
        engines = own.engines or 1
        ranks = own.learner.ranks or max(1, gpus - engines * tensor_parallel)
    method, divided_by = _method_of(wish, ranks, gpu_bytes)
    engine = engine_of(wish, tensor_parallel, method, savings.merged or 0)
    least = max(1, int(wish.engine_share * gpu_bytes))
    return Layout(
        ranks=ranks,
        engines=engines,
        tensor_parallel=tensor_parallel,
        together=together,
        sleeps=savings.sleeps and together,
        learner=learner_of(wish, method, divided_by, savings.tokens),
        engine_weights=engine.weights,
        engine_asleep=engine_of(wish, 1, method).weights
        if _has_own_policies(wish, tensor_parallel)
        else CONTEXT_BYTES,
        engine_beside=_kept_beside(wish, method),
        merged=savings.merged,
        # The operator's share, unless the engine's most requests could not fill it.
        engine_bytes=max(engine.total, min(least, engine.weights + _most_cache(wish, engine))),
    )


def _method_of(wish: Wish, ranks: int, gpu_bytes: int) -> tuple[Method, int]:
    """Return what memory is planned for, and over how many ranks a policy of all parameters is sharded."""
    if wish.shape is None:
        return "lora", 1
    divides = ranks > 1 and wish.shape.parameters >= wish.placement.learner.divide_from
    divided_by = ranks if divides else 1
    if wish.placement.trains != "auto":
        return wish.placement.trains, divided_by
    learner = learner_of(wish, "full", divided_by).total
    engine = engine_of(wish, 1, "full").total + _kept_beside(wish, "full")
    fits = 2 * max(learner, engine) <= usable_bytes(gpu_bytes)
    return "full" if fits and not wish.quantized else "lora", divided_by


def learner_of(wish: Wish, method: Method, divided_by: int, tokens: int = WORK_TOKENS[-1]) -> LearnerNeeds:
    """Return what a rank needs."""
    if wish.shape is None:
        return LearnerNeeds(resident=CONTEXT_BYTES + wish.memory_bytes + wish.teacher_bytes, work=0)
    needs = learner_needs(
        wish.shape,
        method,
        number_bytes=wish.number_bytes,
        divided_by=divided_by,
        tokens=tokens,
        quantized=wish.quantized,
    )
    return replace(needs, resident=needs.resident + wish.teacher_bytes)


def engine_of(wish: Wish, tensor_parallel: int, method: Method, merged: int = 0) -> EngineNeeds:
    """Return what an engine needs on each of its GPUs, at least."""
    if wish.shape is None:
        return EngineNeeds(weights=CONTEXT_BYTES + wish.memory_bytes // tensor_parallel, cache=0)
    policies = 0
    if _has_own_policies(wish, tensor_parallel):
        policies = policy_bytes(wish.shape, method, number_bytes=wish.number_bytes, merged=merged)
    return engine_needs(
        wish.shape,
        number_bytes=wish.number_bytes,
        tensor_parallel=tensor_parallel,
        quantized=wish.quantized,
        policies=policies,
    )


def _kept_beside(wish: Wish, method: Method) -> int:
    if wish.shape is None or method != "full" or not wish.keeps_full_weights:
        return 0
    return waiting_bytes(wish.shape)


def _has_own_policies(wish: Wish, tensor_parallel: int) -> bool:
    """Whether its engine is in a process of ours: vLLM keeps policies in its share, and nothing asleep."""
    return not wish.engine_share and tensor_parallel == 1


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


def choices(rooms: Sequence[NodeRoom], layout: Layout) -> Iterator[list[Chosen]]:
    """Yield GPUs that are enough: of each node that has room for all, the smallest first, then of several.

    Args:
        rooms: Nodes that may be used; the first that is taken also gets the pool.
        layout: What is needed.
    """
    counted = sorted(rooms, key=lambda room: len(room.fitting(layout.chunk_bytes)))
    for room in counted:  # The smallest that is enough.
        if found := _choose([room], layout):
            yield found
    if found := _choose(counted[::-1], layout):
        yield found


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
