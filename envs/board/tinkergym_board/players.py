"""Players: functions from a position to a cell, used as opponents in the environments and as baselines."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tinkergym_board.rules import Position

Player = Callable[[Position, np.random.Generator], int]
"""Chooses a free cell for the player whose turn it is; all randomness comes from the generator."""


def random_player(position: Position, rng: np.random.Generator) -> int:
    """Play any free cell, each equally likely."""
    free = position.free
    return free[int(rng.integers(len(free)))]


def heuristic_player(position: Position, rng: np.random.Generator) -> int:
    """Win at once if possible, else block the opponent's win, else play where most rows are still possible.

    A cell's value is the sum over the rows through it: a row with stones of only one side counts more the
    more stones it has, own ones slightly more than the opponent's. It does not look ahead, so it can be
    forked.
    """
    rules = position.rules
    mine, theirs = position.stones[position.to_move], position.stones[1 - position.to_move]
    best, best_worth = [], -1
    for cell in position.free:
        worth = 0
        for line in rules.lines_through[cell]:
            own, other = (line & mine).bit_count(), (line & theirs).bit_count()
            if own and other:
                continue
            if own == rules.win - 1:
                worth += 1 << 40
            elif other == rules.win - 1:
                worth += 1 << 30
            else:
                worth += (2 * 4**own if own else 4**other) if own or other else 1
        if worth > best_worth:
            best, best_worth = [cell], worth
        elif worth == best_worth:
            best.append(cell)
    return best[int(rng.integers(len(best)))]


def perfect_player(position: Position, rng: np.random.Generator) -> int:
    """Play a move that loses no value against the best defence, found by searching the whole game.

    Among those it chooses the one that earns most if the opponent then moves at random. Only for boards with
    about 9 cells, because the search visits every position.
    """
    best = perfect_moves(position)
    return best[int(rng.integers(len(best)))]


def perfect_moves(position: Position) -> list[int]:
    """Return the moves among which `perfect_player` chooses."""
    moves = [(-_value(after := position.played(cell)), _hope(after), cell) for cell in position.free]
    top = max(move[:2] for move in moves)
    return [move[2] for move in moves if move[:2] == top]


@lru_cache(maxsize=100_000)
def _value(position: Position) -> int:
    """Return the result that the player to move can force: 1, 0 or -1."""
    if position.over:
        # Only the player who has just moved can have won.
        return 0 if position.winner is None else -1
    return max(-_value(position.played(cell)) for cell in position.free)


@lru_cache(maxsize=100_000)
def _hope(position: Position) -> float:
    """Return the mean result of the player who has just moved if the opponent moves at random."""
    if position.over:
        return 0.0 if position.winner is None else 1.0
    replies = []
    for reply in position.free:
        after = position.played(reply)
        if after.over:
            replies.append(0.0 if after.winner is None else -1.0)
            continue
        answers = [after.played(cell) for cell in after.free]
        sound = max(-_value(answer) for answer in answers)
        replies.append(max(_hope(answer) for answer in answers if -_value(answer) == sound))
    return sum(replies) / len(replies)
