"""The best policy of an environment that lists its transitions, by value iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, Any, float, bool]]]]
"""For each state and action: (probability, next state, reward, terminated) of each outcome."""

# Below 1, so that of two ways to the same reward the shorter is worth more.
_DISCOUNT = 0.999


def best_actions(transitions: Transitions) -> NDArray[np.int64]:
    """Return the best action in each state, [states] int64; the lowest of equal ones.

    Exact for deterministic environments, where it finds shortest paths; accurate to 1e-9 otherwise.
    """
    states, actions = len(transitions), len(transitions[0])
    most = max(len(transitions[s][a]) for s in range(states) for a in range(actions))
    chance, follows, reward = (np.zeros((states, actions, most)) for _ in range(3))
    for state in range(states):
        for action in range(actions):
            for i, (probability, successor, earned, terminated) in enumerate(transitions[state][action]):
                chance[state, action, i] = probability
                reward[state, action, i] = earned
                # A terminated episode earns nothing more: it leads to an extra state worth 0.
                follows[state, action, i] = states if terminated else successor
    to = follows.astype(np.int64)
    value = np.zeros(states + 1)
    while True:
        worth = (chance * (reward + _DISCOUNT * value[to])).sum(axis=2)
        better = worth.max(axis=1)
        change = float(np.abs(better - value[:-1]).max())
        value[:-1] = better
        if change < 1e-9:
            # Rounded, so that equal values do not alternate.
            return np.asarray(np.round(worth, 8).argmax(axis=1), dtype=np.int64)
