"""The board games with text observations and moves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tinkergym.errors import IllegalMoveError
from tinkergym.games.illegal import quoted_action
from tinkergym.games.text_game import TextGame
from tinkergym_board.players import heuristic_player, perfect_moves
from tinkergym_board.rules import Position, Rules
from tinkergym_board.text import MARKS, board_text, cell_names, marked, read_cell

_MOST_CELLS_TO_SEARCH = 9


@lru_cache(maxsize=64)
def _rules(size: int, win: int) -> Rules:
    # Building the rows of a large board takes longer than many games, and they never change.
    return Rules(size, win)


class KInARow(TextGame):
    """X begins, and `win` stones in a row win: tic-tac-toe, gomoku. See the pack's README for the text."""

    players = MARKS
    opponents = ("random", "heuristic")

    def __init__(self, size: int = 3, win: int = 3, instructions: bool = False) -> None:
        """Create the game.

        Args:
            size: Cells per side.
            win: Length of the row that wins.
            instructions: Put the rules into the system prompt, for models not trained on the game.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        self.rules = _rules(size, win)
        self.position = Position(self.rules)
        self.last: int | None = None
        if instructions:
            self.system_prompt = f"{win} in a row wins. Answer with the name of a free cell, nothing else."

    def begin(self, rng: np.random.Generator) -> None:
        """Clear the board."""
        del rng
        self.begin_with(None)

    def deals(self) -> list[tuple[float, None]]:
        """Return the only way in which a game can begin, because there is no chance."""
        return [(1.0, None)]

    def begin_with(self, deal: None) -> None:
        """Clear the board."""
        del deal
        self.position, self.last = Position(self.rules), None

    def observe(self, player: int) -> str:
        """Return the board."""
        del player
        return board_text(self.position)

    def legal(self, player: int) -> list[str]:
        """Return the names of the free cells."""
        del player
        names = cell_names(self.rules.size)
        return [names[cell] for cell in self.position.free] if not self.position.over else []

    def read(self, player: int, action: str) -> int:
        """Return the cell that the action names."""
        del player
        cell = read_cell(action, self.rules.size)
        if cell is None:
            # Trained policies depend on every character of the text.
            raise IllegalMoveError(f"{quoted_action(action)} is no cell")
        if self.position.owner(cell) is not None:
            raise IllegalMoveError(f"{quoted_action(action)} is taken")
        return cell

    def play(self, player: int, move: int) -> float | None:
        """Put a stone on the cell."""
        self.position = position = self.position.played(move)
        self.last = move
        if position.winner is not None:
            return 1.0 if position.winner == player else -1.0
        return 0.0 if position.full else None

    def view(self, player: int) -> dict[str, Any]:
        """Return the board with the last move."""
        del player
        size = self.rules.size
        marks = "".join(marked(self.position, ["."] * self.rules.cells))
        last = None if self.last is None else divmod(self.last, size)
        return {
            "kind": "board",
            "rows": [marks[at : at + size] for at in range(0, self.rules.cells, size)],
            "last": last,
        }

    def heuristic(self, player: int, rng: np.random.Generator) -> str:
        """Win if possible, else block, else build."""
        del player
        return cell_names(self.rules.size)[heuristic_player(self.position, rng)]

    def gold(self, player: int) -> str | None:
        """Return a perfect move on boards with at most 9 cells."""
        if self.rules.cells > _MOST_CELLS_TO_SEARCH or self.position.to_move != player or self.position.over:
            return None
        return cell_names(self.rules.size)[perfect_moves(self.position)[0]]


def tictactoe(size: int = 3, win: int = 3, instructions: bool = False) -> KInARow:
    """Return tic-tac-toe with the agents `x` and `o`; the arguments are those of `KInARow`."""
    game = KInARow(size, win, instructions)
    game.agents = ("x", "o")
    return game


def gomoku(size: int = 5, win: int = 4, instructions: bool = False) -> KInARow:
    """Return gomoku with the agents `black` and `white`; the arguments are those of `KInARow`."""
    game = KInARow(size, win, instructions)
    game.agents = ("black", "white")
    return game
