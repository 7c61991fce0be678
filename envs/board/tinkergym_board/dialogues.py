"""Conversations in which an assistant plays random legal moves: the format is right, the play is not.

For warming up a small model, so that reinforcement learning starts from legal moves and not from noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinkergym_board.players import OPPONENTS
from tinkergym_board.text import read_cell
from tinkergym_board.versus import VersusEnv

BOARDS = ((3, 3), (3, 3), (4, 3), (4, 4), (5, 4), (5, 4))
"""(size, win) of the games, each line equally likely; the registered sizes stand twice."""


def dialogues(rng: np.random.Generator, count: int) -> Iterator[list[dict[str, str]]]:
    """Yield `count` whole episodes as message lists, as the agent loop would show them to a model.

    The last message is the assistant's; what the environment says after the end is never shown.
    """
    envs = [VersusEnv(size, win, opponent) for size, win in BOARDS for opponent in OPPONENTS]
    for _ in range(count):
        env = envs[int(rng.integers(len(envs)))]
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        messages, ended = [], False
        while not ended:
            move = _random_legal_move(observation, env.rules.size, rng)
            messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": move}]
            observation, _, ended, _, _ = env.step(move)
        yield messages


def _random_legal_move(observation: str, size: int, rng: np.random.Generator) -> str:
    # Read from the text, as a policy has to: what is legal is exactly what the board shows by name.
    board = " ".join(observation.splitlines()[-size:])
    names = [word for word in board.split() if read_cell(word, size) is not None]
    return names[int(rng.integers(len(names)))]
