"""Reading drills: questions about a board with right answers, so that the nano model learns to read boards.

They teach the notation and the rules: what is where, which cell would complete a row, who has won, but not
which legal move to choose. Without them a model this small does not learn where stones are, because a legal
move can be copied without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from tinkergym_board.players import random_player
from tinkergym_board.rules import Position, Rules
from tinkergym_board.text import MARKS, board_text, cell_names

from tinkergym.messages import Message, assistant, user

_RULES = (Rules(3, 3), Rules(3, 3), Rules(3, 3), Rules(5, 4))
_FINISHED_SHARE = 0.3


def dialogues(rng: np.random.Generator, count: int) -> Iterator[list[Message]]:
    """Yield `count` questions with their answers; the boards come from random play."""
    for _ in range(count):
        position = _random_position(rng)
        question, answer = _QUESTIONS[int(rng.integers(len(_QUESTIONS)))](position, rng)
        yield [user(f"{board_text(position)}\n{question}"), assistant(answer)]


def _random_position(rng: np.random.Generator) -> Position:
    rules = _RULES[int(rng.integers(len(_RULES)))]
    finished = rng.random() < _FINISHED_SHARE
    moves = rules.cells if finished else int(rng.integers(rules.cells))
    position = Position(rules)
    for _ in range(moves):
        if position.over:
            break
        position = position.played(random_player(position, rng))
    return position


def _where_are(position: Position, rng: np.random.Generator) -> tuple[str, str]:
    player = int(rng.integers(2))
    names = cell_names(position.rules.size)
    found = [name for cell, name in enumerate(names) if position.owner(cell) == player]
    return f"{MARKS[player]}?", " ".join(found) or "none"


def _what_is_free(position: Position, rng: np.random.Generator) -> tuple[str, str]:
    names = cell_names(position.rules.size)
    return "free?", " ".join(names[cell] for cell in position.free) or "none"


def _what_is_on(position: Position, rng: np.random.Generator) -> tuple[str, str]:
    cell = int(rng.integers(position.rules.cells))
    owner = position.owner(cell)
    return f"{cell_names(position.rules.size)[cell]}?", "free" if owner is None else MARKS[owner]


def _what_completes_a_row(position: Position, rng: np.random.Generator) -> tuple[str, str]:
    player = int(rng.integers(2))
    names, lines = cell_names(position.rules.size), position.rules.lines_through
    missing = ~position.stones[player]
    found = [
        names[cell] for cell in position.free if any(line & missing == 1 << cell for line in lines[cell])
    ]
    return f"{MARKS[player]} row?", " ".join(found) or "none"


def _who_won(position: Position, rng: np.random.Generator) -> tuple[str, str]:
    return "won?", "none" if position.winner is None else MARKS[position.winner]


_QUESTIONS: tuple[Callable[[Position, np.random.Generator], tuple[str, str]], ...] = (
    _where_are,
    _what_is_free,
    _what_is_on,
    _what_completes_a_row,
    _what_completes_a_row,
    _who_won,
)
