"""The processes of a placed model: on which node each runs, with how many CPUs and how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.planning.gpu_layout import Chosen, Layout
from backend.planning.machines import NodeRoom, Part, PartKind, Placed, Wish


def has_processors(room: NodeRoom, wish: Wish) -> bool:
    """Whether a node can run a pool's process; others may still run its ranks."""
    return room.has(wish.cpus, wish.memory_bytes)


def cpu_parts(rooms: Sequence[NodeRoom], wish: Wish) -> tuple[Part, ...] | None:
    """Return the parts of a model on CPUs, on as few nodes as possible; None if there is no room."""
    ranks, engines = wish.placement.learner.ranks or 1, wish.placement.engines or 1
    own_rank = wish.rank_cpus if ranks > 1 else 0.0
    others: list[tuple[PartKind, int]] = [("rank", number) for number in range(1, ranks)] + [
        ("engine", n) for n in range(1, engines)
    ]
    wanted = [
        Part(kind="pool", number=0, node_id="", cpus=wish.cpus + own_rank, memory_bytes=wish.memory_bytes)
    ]
    wanted += [Part(kind="env_workers", number=0, node_id="", cpus=wish.env_worker_cpus)]
    wanted += [
        Part(kind=kind, number=number, node_id="", cpus=wish.rank_cpus, memory_bytes=wish.memory_bytes)
        for kind, number in others
    ]
    # The smallest node that is enough: large ones stay free for large models.
    for room in sorted(rooms, key=lambda room: room.cpus):
        if (found := _fit([room], wanted)) is not None:
            return found
    return _fit(sorted(rooms, key=lambda room: -room.cpus), wanted)


def gpu_parts(
    wish: Wish, layout: Layout, chosen: Sequence[Chosen], rooms: Sequence[NodeRoom]
) -> Placed | None:
    """Return a model's place on these GPUs; None if their nodes have too few CPUs or too little memory.

    The pool's process is on the first node. It is rank 0 if there is no other, and engine 0 always.
    """
    places = [(one.node_id, gpus) for one in chosen for gpus in one.chunks]
    together = [(node_id, gpu) for node_id, gpus in places for gpu in gpus] if layout.together else []
    alone = [(one.node_id, gpu) for one in chosen for gpu in one.singles]
    order = {one.node_id: number for number, one in enumerate(chosen)}
    for_ranks = sorted(together + alone, key=lambda place: order[place[0]])[: layout.ranks]
    first = for_ranks[0][0]
    own_rank = wish.rank_cpus if layout.ranks > 1 else 0.0
    parts = [
        Part(kind="pool", number=0, node_id=first, cpus=wish.cpus + own_rank, memory_bytes=wish.memory_bytes),
        Part(kind="env_workers", number=0, node_id="", cpus=wish.env_worker_cpus),
    ]
    for number, (node_id, gpu) in enumerate(for_ranks):
        cpus, memory = (0.0, 0) if number == 0 else (wish.rank_cpus, wish.memory_bytes)
        parts.append(
            Part(
                kind="rank",
                number=number,
                node_id=node_id,
                cpus=cpus,
                memory_bytes=memory,
                gpus=(gpu,),
                gpu_bytes=layout.learner.total,
                work_bytes=layout.learner.work,
            )
        )
    # Engine 0 belongs to the pool's process: it is on its node if any is.
    places.sort(key=lambda place: place[0] != first)
    for number, (node_id, gpus) in enumerate(places):
        cpus, memory = (0.0, 0) if number == 0 and node_id == first else (wish.rank_cpus, wish.memory_bytes)
        parts.append(
            Part(
                kind="engine",
                number=number,
                node_id=node_id,
                cpus=cpus,
                memory_bytes=memory,
                gpus=gpus,
                gpu_bytes=layout.engine_bytes,
                work_bytes=layout.engine_bytes - layout.engine_weights,
                merged_adapters=layout.merged,
            )
        )
    fitted = _fit(rooms, parts)
    if fitted is None:
        return None
    claims = [
        (node_id, gpu, layout.chunk_bytes)
        for one in chosen
        for node_id, chunk in _named(one)
        for gpu in chunk
    ]
    claims += [(node_id, gpu, layout.single_bytes) for node_id, gpu in alone]
    return Placed(name=wish.name, model=wish.model, parts=fitted, claims=tuple(claims), sleeps=layout.sleeps)


def _named(one: Chosen) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.node_id, chunk) for chunk in one.chunks]


def _fit(rooms: Sequence[NodeRoom], wanted: Sequence[Part]) -> tuple[Part, ...] | None:
    """Give each part without a node the first that has room for it; None if there is none."""
    left = {room.machine.node_id: room.copy() for room in rooms}
    found: dict[int, Part] = {}
    # Those that cannot choose come first.
    for index, part in sorted(enumerate(wanted), key=lambda one: not one[1].node_id):
        nodes = [left[part.node_id]] if part.node_id else list(left.values())
        room = next((room for room in nodes if room.has(part.cpus, part.memory_bytes)), None)
        if room is None:
            return None
        room.cpus -= part.cpus
        room.memory_bytes -= part.memory_bytes
        found[index] = replace(part, node_id=room.machine.node_id)
    return tuple(found[index] for index in range(len(wanted)))
