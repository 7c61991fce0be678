"""Which idle models end so that one that waits has a place. Independent of processes."""

from __future__ import annotations

from collections.abc import Sequence

from backend.planning.machines import Machine, NotPlaced, Placed, Wish
from backend.planning.model_plan import plan


def ends_for(
    machines: Sequence[Machine], wishes: Sequence[Wish], held: Sequence[Placed], idle: Sequence[str]
) -> list[str]:
    """Return the fewest idle models whose end makes room for the oldest waiting model that they can help.

    An older one that they cannot help keeps those on nodes that it could use: it may need them later. Not if
    it waits for GPUs of other programs, and would have no place even if no model were placed.

    Args:
        machines: The nodes that may be used.
        wishes: Models without a place, the oldest first.
        held: Placed models.
        idle: Those that may end, the longest idle first.
    """
    left = list(idle)
    for wish in wishes:
        if not left:
            break
        found = plan(machines, [wish], held)[wish.name]
        if isinstance(found, Placed):  # Its turn comes with the next plan.
            held = [*held, found]
        elif not found.forever:
            if ends := _fewest(machines, wish, held, left):
                return ends
            if isinstance(plan(machines, [wish])[wish.name], Placed):
                left = [name for name in left if name not in dict(found.holders)]
    return []


def _fewest(
    machines: Sequence[Machine], wish: Wish, held: Sequence[Placed], idle: Sequence[str]
) -> list[str]:
    """Return what has to end for a wish, those that were used last only if need be; nothing if in vain."""

    def fits(ends: Sequence[str]) -> bool:
        others = [placed for placed in held if placed.name not in ends]
        return not isinstance(plan(machines, [wish], others)[wish.name], NotPlaced)

    if not fits(idle):
        return []
    ends = list(idle)
    for name in reversed(idle):
        without = [other for other in ends if other != name]
        if fits(without):
            ends = without
    return ends
