"""The slot machine: how often each word pays. Pure functions, independent of text and environments."""

from __future__ import annotations

import numpy as np

ARMS = ("red", "blue", "green", "gold", "pink", "grey", "black", "white")
"""All arms; an episode offers some of them."""


def payouts(machine: int) -> dict[str, float]:
    """Return each arm's probability of paying 1.

    The probabilities 1/16, 3/16, ... 15/16 are assigned to the arms in an order that depends only on
    `machine`, so every machine is equally hard and experience with one does not help with another.
    """
    order = np.random.default_rng(machine).permutation(len(ARMS))
    return {ARMS[int(arm)]: (2 * rank + 1) / (2 * len(ARMS)) for rank, arm in enumerate(order)}
