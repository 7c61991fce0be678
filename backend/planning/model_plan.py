"""`plan`: which model runs where, and why others do not. A pure function of nodes, wishes and what is held.

Wishes are placed in their order, each as if those before it were running. One that has no room waits, and
does not keep those after it from being placed, unless it has waited so long that its room is kept for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from backend.planning.gpu_layout import (
    SMALL,
    Layout,
    MemorySavings,
    choices,
    choose_with,
    layout_of,
    savings_to_try,
)
from backend.planning.machines import Machine, NodeRoom, NotPlaced, Placed, Rooms, Wish, rooms_of, take
from backend.planning.memory_needs import divides_heads
from backend.planning.plan_reasons import (
    no_heads,
    no_label,
    no_processors,
    others_hold,
    too_few_gpus,
)
from backend.planning.process_parts import cpu_parts, gpu_parts, has_processors

_ENGINE_SIZES = (1, 2, 4, 8, 16)


def plan(
    machines: Sequence[Machine],
    wishes: Iterable[Wish],
    held: Sequence[Placed] = (),
    *,
    passed_long: Collection[str] = (),
    stays: Collection[str] = (),
) -> dict[str, Placed | NotPlaced]:
    """Place models.

    Args:
        machines: The nodes that may be used.
        wishes: Models without a place, the most urgent first.
        held: Placed models, which stay where they are.
        passed_long: Wishes that others have passed for long enough: if they wait again, those after them get
            nothing of the nodes' emptiest part that they could have.
        stays: Placed models for whose end none waits.

    Returns:
        By the wish's name, its place, or why it has none.
    """
    rooms, running = rooms_of(machines, held), list(held)
    found: dict[str, Placed | NotPlaced] = {}
    keeps = False
    for wish in wishes:
        placed = _place(rooms, wish)
        if isinstance(placed, Placed):
            take(rooms, placed)
            running.append(placed)
        else:
            alone = _place(rooms_of(machines), wish)
            if isinstance(alone, NotPlaced) and (alone.forever or not _may_get_gpus(machines, wish)):
                placed = replace(alone, forever=True)
            else:
                # `rooms` also lacks what was kept for wishes before it: would it have a place without that?
                kept_back = keeps and isinstance(_place(rooms_of(machines, running), wish), Placed)
                also = ("what else is free is kept for a model that waits longer",) if kept_back else ()
                holders = _holders(running, wish, rooms)
                placed = replace(placed, others=placed.others + also, forever=False, holders=holders)
                if wish.name in passed_long:
                    others = [one for one in held if one.name in stays]
                    keeps |= _keep_room(rooms, rooms_of(machines, others), wish)
        found[wish.name] = placed
    return found


def _keep_room(rooms: Rooms, empty: Rooms, wish: Wish) -> bool:
    """Take the least that a wish needs from what is left; whether it had that on `empty` nodes."""
    for node_id, room in empty.items():
        # Between GPUs that are equal when empty, the choice falls on those with most left now.
        left = rooms[node_id].gpus
        room.gpus = [size - (size - now) // 10**9 for size, now in zip(room.gpus, left, strict=True)]
    order = sorted(empty, key=lambda node_id: (-sum(rooms[node_id].gpus), -rooms[node_id].cpus))
    empty = {node_id: empty[node_id] for node_id in order}
    placed = _place(empty, wish)
    if isinstance(placed, Placed) and wish.placement.gpus is None:
        for gpus in range(1, placed.gpus):
            fewer = replace(wish, placement=wish.placement.model_copy(update={"gpus": gpus}))
            if isinstance(least := _place(empty, fewer), Placed):
                placed = least
                break
    if isinstance(placed, Placed):
        take(rooms, placed)
    return isinstance(placed, Placed)


def _place(rooms: Rooms, wish: Wish) -> Placed | NotPlaced:
    labels = wish.placement.labels.items()
    usable = [room for room in rooms.values() if labels <= room.machine.labels.items()]
    if not usable:
        return no_label(wish, rooms.values())
    with_gpus = [room for room in usable if room.gpus]
    machines = [room.machine for room in usable]
    if not with_gpus and _may_get_gpus(machines, wish):
        return others_hold(wish, machines)
    if wish.placement.gpus == 0 or (wish.placement.gpus is None and not with_gpus):
        return _on_cpus(usable, wish)
    return _on_gpus(with_gpus, usable, wish)


def _may_get_gpus(machines: Iterable[Machine], wish: Wish) -> bool:
    """Whether other programs may give back GPUs that a model could use."""
    labels = wish.placement.labels.items()
    may = any(one.gpus_of_others for one in machines if labels <= one.labels.items())
    return may and wish.placement.gpus != 0


def _on_cpus(rooms: Sequence[NodeRoom], wish: Wish) -> Placed | NotPlaced:
    if not divides_heads(wish.shape, wish.placement.tensor_parallel or 1):
        return no_heads(wish)
    parts = cpu_parts(rooms, wish)
    return (
        no_processors(wish, rooms) if parts is None else Placed(name=wish.name, model=wish.model, parts=parts)
    )


def _on_gpus(rooms: Sequence[NodeRoom], usable: Sequence[NodeRoom], wish: Wish) -> Placed | NotPlaced:
    wish = replace(wish, cpus=wish.cpus if wish.placement.cpus else wish.gpu_cpus, rank_cpus=wish.gpu_cpus)
    sizes = _engine_sizes(rooms, wish)
    if not sizes:
        return no_heads(wish)
    enough = [room for room in rooms if has_processors(room, wish)]
    for size in sizes:
        for savings in savings_to_try(wish, size):
            for layout in _layouts(enough, wish, size, savings):
                for chosen in choices(enough, layout):
                    if (parts := gpu_parts(wish, layout, chosen, usable)) is not None:
                        return parts
    # Last: a model without a wish for more GPUs stays where its pool's process could be.
    if (found := _with_nodes_for_ranks(rooms, enough, usable, wish, sizes)) is not None:
        return found
    least = [
        min(
            _layouts(rooms, wish, size, savings_to_try(wish, size)[-1], on_one_node=False),
            key=lambda layout: (layout.chunk_bytes, layout.gpus),
        )
        for size in sizes
    ]
    if any(True for layout in least for _ in choices(rooms, layout)):
        return no_processors(wish, rooms)
    return too_few_gpus(wish, rooms, least)


def _with_nodes_for_ranks(
    rooms: Sequence[NodeRoom],
    enough: Sequence[NodeRoom],
    usable: Sequence[NodeRoom],
    wish: Wish,
    sizes: Sequence[int],
) -> Placed | None:
    """Place a model with its pool on one of the nodes with `enough` for it, and ranks also on others.

    If all these nodes hold are ranks, the engines are on the pool's node, unless their number is wished.
    """
    if len(enough) == len(rooms):
        return None
    for size, savings in [(each, savings) for each in sizes for savings in savings_to_try(wish, each)]:
        for layout in _layouts(enough, wish, size, savings):
            for first in enough:
                others = [room for room in rooms if room is not first]
                fewer = max(1, min(layout.engines, len(first.gpus) // size))
                for engines in dict.fromkeys((layout.engines, wish.placement.engines or fewer)):
                    laid_out = replace(layout, engines=engines)
                    chosen = choose_with(first, others, laid_out)
                    parts = chosen and gpu_parts(wish, laid_out, chosen, usable)
                    if parts:
                        return parts
    return None


def _engine_sizes(rooms: Sequence[NodeRoom], wish: Wish) -> list[int]:
    """Return how many GPUs an engine may have, the fewest first."""
    wished = wish.placement.tensor_parallel
    if wished is not None:
        return [wished] if divides_heads(wish.shape, wished) else []
    most = max((len(room.gpus) for room in rooms), default=1)
    if (own := wish.placement).gpus:
        # Apart, the ranks have GPUs that no engine may use.
        alone = (own.learner.ranks or 1) if own.together is False else 0
        most = min(most, (own.gpus - alone) // (own.engines or 1))
    return [
        size
        for size in _ENGINE_SIZES
        if size == 1 or (size <= most and wish.shape is not None and divides_heads(wish.shape, size))
    ]


def _layouts(
    rooms: Sequence[NodeRoom], wish: Wish, size: int, savings: MemorySavings, *, on_one_node: bool = True
) -> list[Layout]:
    """Return the layouts to try, the one with most GPUs first.

    Args:
        rooms: Nodes with GPUs.
        wish: The model.
        size: GPUs of one engine.
        savings: How it saves memory.
        on_one_node: Only those for which a node has room, as far as their number of GPUs is not wished.
    """
    own = wish.placement
    gpu_bytes = max((gpu for room in rooms for gpu in room.machine.gpus), default=0)

    def laid_out(gpus: int) -> Layout:
        return layout_of(wish, gpus=gpus, tensor_parallel=size, savings=savings, gpu_bytes=gpu_bytes)

    if own.gpus:
        return [laid_out(own.gpus)]
    engine_gpus = (own.engines or 1) * size
    if own.together is False:
        return [laid_out(engine_gpus + (own.learner.ranks or 1))]
    least = max(own.learner.ranks or 1, engine_gpus)
    if own.learner.ranks or own.engines or (wish.shape is not None and wish.shape.parameters < SMALL):
        return [laid_out(least)]
    # On more GPUs a policy that is sharded needs less of each. Last are those on which an engine has no part.
    most = max((len(room.gpus) for room in rooms), default=0)
    numbers = sorted(range(most, least, -1), key=lambda gpus: gpus % size != 0)
    full = sum(gpus % size == 0 for gpus in numbers)
    each = [laid_out(gpus) for gpus in (*numbers[:full], least, *numbers[full:])]
    if not on_one_node:
        return each
    return [
        one
        for one in each
        if one.gpus == least or any(len(room.fitting(one.chunk_bytes)) >= one.gpus for room in rooms)
    ]


def _holders(running: Sequence[Placed], wish: Wish, rooms: Rooms) -> tuple[tuple[str, int], ...]:
    labels = wish.placement.labels.items()
    near = {node_id for node_id, room in rooms.items() if labels <= room.machine.labels.items()}
    return tuple(
        (placed.name, placed.gpus) for placed in running if any(part.node_id in near for part in placed.parts)
    )
