"""One agent against an opponent that the environment plays."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tinkergym.core import TextEnv
from tinkergym.errors import InvalidRequestError
from tinkergym_board.players import OPPONENTS, Player
from tinkergym_board.rules import Position, Rules
from tinkergym_board.text import MARKS, board_text, read_cell

# An illegal move is quoted in the last observation; this much of it is enough to recognise it.
_QUOTED_CHARACTERS = 20


@lru_cache(maxsize=64)
def _rules(size: int, win: int) -> Rules:
    # Building the rows of a large board takes longer than many games; they never change.
    return Rules(size, win)


class VersusEnv(TextEnv):
    """Play X or O, as the seed draws it; X begins. See the pack's README for text and rewards."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        size: int = 3,
        win: int = 3,
        opponent: str = "random",
        instructions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Set up the board.

        Args:
            size: Cells per side.
            win: Length of the row that wins.
            opponent: `random` or `heuristic`.
            instructions: Put the rules into the system prompt, for models that never met this text before.
            render_mode: `ansi` lets `render` return the board.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        super().__init__(render_mode)
        if opponent not in OPPONENTS:
            known = ", ".join(OPPONENTS)
            raise InvalidRequestError(
                f"{opponent!r} is no opponent", hint=f"choose one of {known}", field="opponent"
            )
        self.rules = _rules(size, win)
        self._opponent: Player = OPPONENTS[opponent]
        self._position = Position(self.rules)
        self._seat = 0
        if instructions:
            prompt = f"{win} in a row wins. Answer with the name of a free cell, nothing else."
            self.metadata = {**self.metadata, "system_prompt": prompt}

    def start(self, options: dict[str, Any]) -> str:
        """Start a game; if the agent is O, the opponent has already moved."""
        self._position = Position(self.rules)
        self._seat = int(self.np_random.integers(2))
        if self._seat == 1:
            self._opponent_moves()
        return f"You are {MARKS[self._seat]}.\n{board_text(self._position)}"

    def reply(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Play the named cell and let the opponent answer; a move that is none loses at once."""
        cell = read_cell(action, self.rules.size)
        if cell is None or self._position.owner(cell) is not None:
            what = "is no cell" if cell is None else "is taken"
            reason = f"{action[:_QUOTED_CHARACTERS]!a} {what}"
            return self._ended(-1.0, f"Illegal move: {reason}. You lose.", illegal=True)
        self._position = self._position.played(cell)
        if not self._position.over:
            self._opponent_moves()
        if not self._position.over:
            return board_text(self._position), 0.0, False, {}
        if self._position.winner is None:
            return self._ended(0.0, "Draw.")
        won = self._position.winner == self._seat
        return self._ended(1.0 if won else -1.0, "You win." if won else "You lose.")

    def seat_opponent(self, answer: Callable[[str], str]) -> None:
        """Let somebody else play the opponent's stones, from the next move on.

        Args:
            answer: Is shown the board as text and answers with a cell; asked again until the move is legal.
        """

        def player(position: Position, _rng: np.random.Generator) -> int:
            shown = f"You are {MARKS[position.to_move]}.\n{board_text(position)}"
            while True:
                cell = read_cell(answer(shown), position.rules.size)
                if cell is not None and position.owner(cell) is None:
                    return cell

        self._opponent = player

    def render(self) -> str:
        """Return the board as the agent sees it."""
        return board_text(self._position)

    def _opponent_moves(self) -> None:
        self._position = self._position.played(self._opponent(self._position, self.np_random))

    def _ended(
        self, reward: float, verdict: str, *, illegal: bool = False
    ) -> tuple[str, float, bool, dict[str, Any]]:
        metrics = {
            "won": float(reward > 0),
            "drawn": float(reward == 0),
            "lost": float(reward < 0),
            "illegal_move": float(illegal),
        }
        return f"{board_text(self._position)}\n{verdict}", reward, True, {"metrics": metrics}
