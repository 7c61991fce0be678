"""Models, nodes and wishes of the planner's tests, written shortly."""

from __future__ import annotations

from backend.planning.machines import Machine, NotPlaced, Placed, Wish
from backend.planning.model_shape import ModelShape
from backend.planning.wishes import ModelPlacement

GB = 10**9


def shape(hidden, inner, layers, heads, keys, *, vocabulary=151_936, tied=False, context=32_768):
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_value_heads=keys,
        head_size=hidden // heads,
        intermediate=inner,
        vocabulary=vocabulary,
        context_length=context,
        tied=tied,
    )


SHAPES = {
    "tiny": shape(128, 512, 3, 4, 4, vocabulary=1024, context=1024),
    "0.5B": shape(896, 4864, 24, 14, 2, tied=True),
    "7B": shape(3584, 18_944, 28, 28, 4),
    "32B": shape(5120, 27_648, 64, 40, 8),
    "72B": shape(8192, 29_568, 80, 64, 8),
}


def machine(node_id, gpus=0, gb=0, *, cpus=64, memory=2000, **labels):
    return Machine(
        node_id=node_id, cpus=cpus, memory_bytes=memory * GB, gpus=(gb * GB,) * gpus, labels=labels
    )


def machines(text):
    """Read nodes: `a:8x141 b:2x24,gpu=l4 c:0`, the memory of a GPU in GB."""
    found = []
    for one in text.split():
        node_id, _, rest = one.partition(":")
        gpus, *labels = rest.split(",")
        number, _, gb = gpus.partition("x")
        found.append(machine(node_id, int(number), int(gb or 0), **dict(part.split("=") for part in labels)))
    return found


def wish(model, name="", *, cpus=2.0, cpu_wish=None, memory=4, **placement):
    return Wish(
        name=name or model,
        model=model,
        placement=ModelPlacement(cpus=cpu_wish, **placement),
        shape=SHAPES[model],
        number_bytes=2,
        cpus=cpus,
        memory_bytes=memory * GB,
        rank_cpus=1.0,
        env_worker_cpus=2.0,
    )


def shown(found: Placed | NotPlaced) -> str:
    """Return what was placed: `r` ranks, `e` engines of `t` GPUs, and GPUs by node; `wait` or `never`."""
    if isinstance(found, NotPlaced):
        return "never" if found.forever else "wait"
    if not found.claims:
        return f"cpu r{1 + len(found.of('rank'))}"
    nodes = sorted({node_id for node_id, _, _ in found.claims})
    by_node = "+".join(f"{node}{sum(claim[0] == node for claim in found.claims)}" for node in nodes)
    engines = found.of("engine")
    return f"r{len(found.of('rank'))} e{len(engines)}t{len(engines[0].gpus)} {by_node}"
