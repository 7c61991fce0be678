"""Conversations in which an assistant plays random legal moves: the format is right, the play is random.

For warming up a small model, so that reinforcement learning starts with legal moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.messages import Message, assistant, user
from tinkergym.registration.games import make_game
from tinkergym_board.games import KInARow
from tinkergym_board.players import random_player
from tinkergym_board.text import cell_names, read_position

BOARDS = ((3, 3), (3, 3), (4, 3), (4, 4), (5, 4), (5, 4))
"""(size, win) of the games, each entry equally likely; registered games are listed twice."""


def dialogues(
    rng: np.random.Generator, count: int, *, boards: Sequence[tuple[int, int]] = BOARDS
) -> Iterator[list[Message]]:
    """Yield `count` whole episodes as message lists, as the agent loop shows them to a model.

    Both seats and all opponents occur. The last message is the assistant's, because what the environment says
    after the end is never shown.
    """
    envs = [
        AgainstOpponent(make_game("board/TicTacToe-v0", size=size, win=win), opponent=opponent)
        for size, win in boards
        for opponent in KInARow.opponents
    ]
    for _ in range(count):
        env = envs[int(rng.integers(len(envs)))]
        rules = env.game.rules
        names = cell_names(rules.size)
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        messages: list[Message] = []
        ended = False
        while not ended:
            move = names[random_player(read_position(observation, rules), rng)]
            messages += [user(observation), assistant(move)]
            observation, _, ended, _, _ = env.step(move)
        yield messages
