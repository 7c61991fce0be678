"""Rock, paper, scissors, for two players at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame

_SHAPES = ["rock", "paper", "scissors"]
"""Each beats the one before it, and the first beats the last."""


class RockPaperScissors(TextGame):
    """Several rounds; whoever wins more of them wins. `copycat` repeats the opponent's previous shape."""

    simultaneous = True
    opponents = ("random", "copycat")

    def __init__(self, rounds: int = 3) -> None:
        """Set the number of rounds.

        Args:
            rounds: Rounds per game, from 1 to 100.

        Raises:
            InvalidRequestError: It is out of range.
        """
        if not 1 <= rounds <= 100:
            raise InvalidRequestError(f"must be from 1 to 100, not {rounds!r}", field="rounds")
        self.rounds = rounds

    def begin(self, rng: np.random.Generator) -> None:
        """Begin at 0 : 0."""
        del rng
        self.played: list[list[str]] = []
        self.won = [0, 0]
        self.tell(f"Rock, paper or scissors? {self.rounds} rounds.")

    def legal(self, player: int) -> list[str]:
        """Return the three shapes."""
        del player
        return _SHAPES

    def play_round(self, moves: list[str]) -> list[float] | None:
        """Compare the shapes."""
        self.played.append(moves)
        ahead = (_SHAPES.index(moves[0]) - _SHAPES.index(moves[1])) % 3
        if ahead:
            self.won[ahead - 1] += 1
        for player in (0, 1):
            self.tell(f"You showed {moves[player]}, your opponent {moves[1 - player]}.", player)
        if len(self.played) < self.rounds:
            return None
        lead = float(np.sign(self.won[0] - self.won[1]))
        return [lead, -lead]

    def view(self, player: int) -> dict[str, Any]:
        """Return the rounds so far."""
        rows = [[moves[player], moves[1 - player]] for moves in self.played]
        return {"kind": "table", "columns": ["you", "the other"], "rows": rows}

    def copycat(self, player: int, rng: np.random.Generator) -> str:
        """Show the opponent's previous shape; any shape in the first round."""
        return self.played[-1][1 - player] if self.played else _SHAPES[int(rng.integers(3))]
