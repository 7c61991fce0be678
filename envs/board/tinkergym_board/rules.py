"""The rules of k-in-a-row on a square board: tic-tac-toe is (3, 3), gomoku is (15, 5) or smaller.

Pure game logic without text, randomness, opponents or rewards, so all environments with these games can share
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinkergym.errors import InvalidRequestError

MAX_SIZE = 26
"""Columns have one-letter names."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A board of `size` x `size` cells on which a row of at least `win` stones wins.

    Cells are numbered row by row from 0. Sets of cells are ints used as bit masks: bit i is cell i.
    """

    size: int = 3
    win: int = 3
    """Length of the winning row: across, down or diagonal."""
    lines: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Every possible winning row, as a set of cells."""
    lines_through: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """The same rows, by the cells they contain."""

    def __post_init__(self) -> None:
        if not 2 <= self.size <= MAX_SIZE:
            raise InvalidRequestError(f"must be from 2 to {MAX_SIZE}, not {self.size!r}", field="size")
        if not 2 <= self.win <= self.size:
            raise InvalidRequestError(
                f"a row of {self.win!r} does not fit on a board of size {self.size}",
                hint=f"choose a row length from 2 to {self.size}",
                field="win",
            )
        lines = _lines(self.size, self.win)
        through = tuple(tuple(line for line in lines if line >> cell & 1) for cell in range(self.cells))
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "lines_through", through)

    @property
    def cells(self) -> int:
        """The number of cells."""
        return self.size * self.size


@dataclass(frozen=True, slots=True)
class Position:
    """A position. Player 0 is X and moves first, player 1 is O."""

    rules: Rules
    stones: tuple[int, int] = (0, 0)
    """The cells of player 0 and of player 1."""
    to_move: int = 0
    winner: int | None = None

    @property
    def free(self) -> list[int]:
        """The empty cells in order."""
        taken = self.stones[0] | self.stones[1]
        return [cell for cell in range(self.rules.cells) if not taken >> cell & 1]

    @property
    def full(self) -> bool:
        """Whether no cell is empty."""
        return (self.stones[0] | self.stones[1]) == (1 << self.rules.cells) - 1

    @property
    def over(self) -> bool:
        """Whether the game has ended; it is a draw if nobody won."""
        return self.winner is not None or self.full

    def owner(self, cell: int) -> int | None:
        """Return the player whose stone is on the cell, or None if it is empty."""
        if self.stones[0] >> cell & 1:
            return 0
        return 1 if self.stones[1] >> cell & 1 else None

    def played(self, cell: int) -> Position:
        """Return the position after the player to move has put a stone on `cell`.

        Raises:
            ValueError: The game is over, or the cell is taken or not on the board.
        """
        if self.over or not 0 <= cell < self.rules.cells or self.owner(cell) is not None:
            raise ValueError(f"cell {cell} cannot be played here; `free` lists the cells that can")
        player = self.to_move
        mine = self.stones[player] | 1 << cell
        won = any(mine & line == line for line in self.rules.lines_through[cell])
        stones = (mine, self.stones[1]) if player == 0 else (self.stones[0], mine)
        return Position(self.rules, stones, 1 - player, player if won else None)


def _lines(size: int, win: int) -> tuple[int, ...]:
    found = []
    for row in range(size):
        for column in range(size):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                last_row, last_column = row + down * (win - 1), column + right * (win - 1)
                if last_row < size and 0 <= last_column < size:
                    cells = ((row + down * i) * size + column + right * i for i in range(win))
                    found.append(sum(1 << cell for cell in cells))
    return tuple(found)
