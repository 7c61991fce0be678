"""How boards are written and moves are read.

A cell is a column letter and a row number, `a1` at the top left. An empty cell shows its name, so a legal
move can be copied from the board:

    a1 b1 c1
    a2 O c2
    X b3 c3

Short on purpose: a policy pays for every token, and a name is one token in most vocabularies.
"""

from __future__ import annotations

from functools import lru_cache

from tinkergym_board.rules import Position, Rules

MARKS = ("X", "O")
"""The stones of player 0 and of player 1."""


@lru_cache(maxsize=64)
def cell_names(size: int) -> tuple[str, ...]:
    """Return the names of all cells, row by row."""
    return tuple(f"{chr(ord('a') + column)}{row + 1}" for row in range(size) for column in range(size))


@lru_cache(maxsize=64)
def _cells_by_name(size: int) -> dict[str, int]:
    return {name: cell for cell, name in enumerate(cell_names(size))}


def read_cell(text: str, size: int) -> int | None:
    """Return the cell that a text names, or None.

    Surrounding space and capital letters are ignored; any other word makes the text invalid: a policy that
    pays for a sentence should learn to answer with just the move.
    """
    return _cells_by_name(size).get(text.strip().lower())


def board_text(position: Position) -> str:
    """Return the board, one line per row."""
    size = position.rules.size
    shown = marked(position, list(cell_names(size)))
    return "\n".join(" ".join(shown[start : start + size]) for start in range(0, size * size, size))


def marked(position: Position, cells: list[str]) -> list[str]:
    """Return the list of all cells after the marks of the players were put into it."""
    for player, mark in enumerate(MARKS):
        stones = position.stones[player]
        while stones:
            lowest = stones & -stones
            cells[lowest.bit_length() - 1] = mark
            stones ^= lowest
    return cells


def read_position(observation: str, rules: Rules) -> Position:
    """Return the position shown in an observation of a running game, the inverse of `board_text`.

    Lines above the board are skipped. For players that only see the text, like a policy.

    Raises:
        ValueError: The last lines are not a board of this size.
    """
    words = [word for line in observation.splitlines()[-rules.size :] for word in line.split()]
    names = cell_names(rules.size)
    if len(words) != len(names) or any(w not in (n, *MARKS) for w, n in zip(words, names, strict=True)):
        raise ValueError(f"this is not a board of size {rules.size}: {observation!r}")
    x, o = (sum(1 << cell for cell, word in enumerate(words) if word == mark) for mark in MARKS)
    return Position(rules, (x, o), to_move=0 if x.bit_count() == o.bit_count() else 1)
