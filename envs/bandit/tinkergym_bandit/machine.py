"""The slot machine: which word pays how often. Pure; knows nothing of text or of environments."""

from __future__ import annotations

import numpy as np

ARMS = ("red", "blue", "green", "gold", "pink", "grey", "black", "white")
"""Every arm there is; an episode offers some of them."""


def payouts(machine: int) -> dict[str, float]:
    """Return each arm's probability of paying 1.

    The probabilities 1/16, 3/16, ... 15/16 are dealt to the arms in an order that depends on `machine`
    alone, so every machine is equally hard and what was learned on one says nothing about another.
    """
    order = np.random.default_rng(machine).permutation(len(ARMS))
    return {ARMS[int(arm)]: (2 * rank + 1) / (2 * len(ARMS)) for rank, arm in enumerate(order)}
