"""Why a model has no place, with numbers, and which setting would change that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.planning.gpu_layout import Layout
from backend.planning.machines import Machine, NodeRoom, NotPlaced, Wish
from backend.planning.memory_needs import usable_bytes


def no_label(wish: Wish, rooms: Iterable[NodeRoom]) -> NotPlaced:
    """No node has the labels."""
    wanted = ", ".join(f"{name}={value}" for name, value in wish.placement.labels.items())
    there = sorted({f"{name}={value}" for room in rooms for name, value in room.machine.labels.items()})
    if not wanted:
        return NotPlaced(others=("there is no node that can be used",), forever=True)
    has = f"the nodes have {', '.join(there[:8])}" if there else "the nodes have no labels"
    lacks = f"no node has the labels {wanted} ({_setting(wish, 'labels')})"
    return NotPlaced(others=(lacks, has), forever=True)


def no_heads(wish: Wish) -> NotPlaced:
    """The model cannot be divided over so many GPUs."""
    assert wish.shape is not None
    heads, keys = wish.shape.heads, wish.shape.key_value_heads
    reason = (
        f"{_setting(wish, 'tensor_parallel')}={wish.placement.tensor_parallel} does not divide the model's "
        f"{heads} attention heads and {keys} key-value heads"
    )
    return NotPlaced(others=(reason,), forever=True)


def no_processors(wish: Wish, rooms: Sequence[NodeRoom]) -> NotPlaced:
    """No node has the CPUs or the memory."""
    ranks, engines = wish.placement.learner.ranks or 1, wish.placement.engines or 1
    cpus = wish.cpus + (wish.rank_cpus if ranks > 1 else 0.0)
    needs = f"{cpus:g} CPUs and {_gb(wish.memory_bytes)} on one node"
    further = ranks - 1 + engines - 1
    also = f", {wish.env_worker_cpus:g} CPUs for environment workers" if wish.env_worker_cpus else ""
    also += f", {wish.rank_cpus:g} CPUs and {_gb(wish.memory_bytes)} {further} times more" if further else ""
    most = max(rooms, key=lambda room: (room.cpus, room.memory_bytes))
    has = f"{_number(most.cpus)} CPUs and {_gb(most.memory_bytes)}"
    return NotPlaced(needs=needs + also, largest=has, forever=False)


def others_hold(wish: Wish, machines: Sequence[Machine]) -> NotPlaced:
    """Other programs have all GPUs of these nodes. The CPUs would do, but not as fast as was meant."""
    others = sum(machine.gpus_of_others for machine in machines)
    hold = f"other programs hold the nodes' {_gpus(others)} ({_setting(wish, 'gpus')}=0 means CPUs)"
    return NotPlaced(needs=_gpus(wish.placement.gpus or 1), others=(hold,), forever=False)


def too_few_gpus(wish: Wish, rooms: Sequence[NodeRoom], layouts: Sequence[Layout]) -> NotPlaced:
    """No node has the GPUs.

    Args:
        wish: The model.
        rooms: Nodes with GPUs.
        layouts: What was tried with fewest GPUs, for each size of an engine.
    """
    if not any(room.gpus for room in rooms):
        needs = f"{_gpus(wish.placement.gpus or 1)} ({_setting(wish, 'gpus')})"
        return NotPlaced(needs=needs, others=("no node has one",), forever=True)
    others = sum(room.machine.gpus_of_others for room in rooms)
    also = (f"other programs hold {_gpus(others)}",) if others else ()
    largest = max(usable_bytes(gpu) for room in rooms for gpu in room.machine.gpus)
    possible = [
        each for each in layouts if max(each.chunk_bytes, each.single_bytes if each.singles else 0) <= largest
    ]
    if not possible:
        return _too_large(wish, layouts[-1], largest)
    least = possible[0]
    needed = least.chunk_bytes
    free = max(len(room.fitting(needed)) for room in rooms)
    each = f"with {_gb(needed)} free"
    if least.tensor_parallel > 1 and free < least.tensor_parallel:
        needs = f"{_gpus(least.tensor_parallel)} {each} on one node"
        return NotPlaced(needs=needs, largest=str(free), others=also, forever=False)
    if least.gpus == 1:
        most = max(max(room.gpus) for room in rooms if room.gpus)
        return NotPlaced(needs=f"1 GPU {each}", largest=_gb(max(most, 0)), others=also, forever=False)
    total = sum(len(room.fitting(needed)) for room in rooms)
    have = f"{total} of {sum(len(r.gpus) for r in rooms)} have it"
    together = (f"in groups of {least.tensor_parallel} on one node",) if least.tensor_parallel > 1 else ()
    needs = f"{_gpus(least.gpus)} {each}{_wished(wish)}"
    return NotPlaced(needs=needs, others=(have, *together, *also), forever=False)


def _too_large(wish: Wish, layout: Layout, largest: int) -> NotPlaced:
    engine = layout.engine_bytes
    resident = layout.learner.total
    what = "its learner" if resident > largest or layout.together else "its engine"
    needed = max(layout.chunk_bytes, layout.single_bytes)
    needs = (
        f"{_gb(needed)} of one GPU ({what} {_gb(resident)}, an engine over "
        f"{_gpus(layout.tensor_parallel)} {_gb(engine)} each){_wished(wish)}"
    )
    return NotPlaced(needs=needs, largest=f"{_gb(largest)} for models", forever=True)


def _wished(wish: Wish) -> str:
    """Return the settings that say how many GPUs a model and each of its engines have, in brackets."""
    own = wish.placement
    numbers = {"gpus": own.gpus, "learner.ranks": own.learner.ranks, "engines": own.engines}
    named = [f"{_setting(wish, name)}={number}" for name, number in numbers.items() if number]
    return f" ({', '.join(named)})" if named else ""


def _setting(wish: Wish, name: str) -> str:
    return f"models.{wish.model}.placement.{name}"


def _gpus(number: int) -> str:
    return f"{number} GPU" + ("" if number == 1 else "s")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _number(value: float) -> str:
    return f"{max(value, 0.0):.4g}"
