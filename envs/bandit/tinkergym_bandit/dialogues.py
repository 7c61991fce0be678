"""Conversations in which an assistant pulls random arms: the format is right, the choice is random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinkergym.messages import Message, assistant, user
from tinkergym_bandit.bandit import BanditEnv
from tinkergym_bandit.machine import ARMS


def dialogues(rng: np.random.Generator, count: int) -> Iterator[list[Message]]:
    """Yield `count` whole episodes as message lists, as the agent loop shows them to a model.

    Every number of offered arms is equally likely. Payouts are not shown, so nothing can be learned about any
    machine.
    """
    envs = [BanditEnv(offered) for offered in range(2, len(ARMS) + 1)]
    for _ in range(count):
        observation, _ = envs[int(rng.integers(len(envs)))].reset(seed=int(rng.integers(2**31)))
        arms = observation.removeprefix("Pull: ").split()
        yield [user(observation), assistant(arms[int(rng.integers(len(arms)))])]
