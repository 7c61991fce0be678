"""The iterated prisoner's dilemma: a social dilemma for two players who move at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame

_CHOICES = ["cooperate", "defect"]
_PAYS = {("cooperate", "cooperate"): 3.0, ("defect", "cooperate"): 5.0, ("defect", "defect"): 1.0}
"""The first player's payoff for a pair of choices; cooperating alone pays nothing."""


class PrisonersDilemma(TextGame):
    """Several rounds: both cooperate, 3 each; both defect, 1 each; one defects, 5 for it and 0 for the other.

    Paid round by round; not a zero-sum game. `tit_for_tat` begins with cooperation and then repeats the
    other's last choice; `grim` cooperates until the other has defected once.
    """

    simultaneous = True
    opponents = ("random", "tit_for_tat", "cooperate", "defect", "grim")

    def __init__(self, rounds: int = 5) -> None:
        """Set the length.

        Args:
            rounds: Rounds per game, from 1 to 100. The players are told.

        Raises:
            InvalidRequestError: It is out of range.
        """
        if not 1 <= rounds <= 100:
            raise InvalidRequestError(f"must be from 1 to 100, not {rounds!r}", field="rounds")
        self.rounds = rounds

    def begin(self, rng: np.random.Generator) -> None:
        """Start without a history."""
        del rng
        self.played: list[list[str]] = []
        self.earned = [0.0, 0.0]
        self.tell(f"Prisoner's dilemma, {self.rounds} rounds.")

    def observe(self, player: int) -> str:
        """Return the choice."""
        del player
        return "cooperate or defect?" if len(self.played) < self.rounds else ""

    def legal(self, player: int) -> list[str]:
        """Return both choices."""
        del player
        return _CHOICES

    def play_round(self, moves: list[str]) -> list[float] | None:
        """Pay the round."""
        self.played.append(moves)
        paid = [_PAYS.get((moves[player], moves[1 - player]), 0.0) for player in (0, 1)]
        for player in (0, 1):
            self.earned[player] += paid[player]
            self.tell(f"You: {moves[player]}. The other: {moves[1 - player]}.", player)
        if len(self.played) == self.rounds:
            return paid
        for player in (0, 1):
            self.give(player, paid[player])
        return None

    def view(self, player: int) -> dict[str, Any]:
        """Return the rounds so far."""
        rows = [[moves[player], moves[1 - player]] for moves in self.played]
        return {"kind": "table", "columns": ["you", "the other"], "rows": rows}

    def verdict(self, player: int, total: float) -> str:
        """Return what both earned."""
        return f"You earned {total:g}, the other {self.earned[1 - player]:g}."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return the share of rounds in which the player cooperated, and both players' total."""
        del total
        rounds = max(1, len(self.played))
        mine = sum(moves[player] == "cooperate" for moves in self.played)
        return {"cooperated": mine / rounds, "welfare": sum(self.earned)}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Fine the player without a valid choice; the other gains nothing."""
        return [-1.0 if player in losers else 0.0 for player in (0, 1)]

    def tit_for_tat(self, player: int, rng: np.random.Generator) -> str:
        """Cooperate first, then repeat the other's last choice."""
        del rng
        return self.played[-1][1 - player] if self.played else "cooperate"

    def grim(self, player: int, rng: np.random.Generator) -> str:
        """Cooperate until the other defects, and never again."""
        del rng
        betrayed = any(moves[1 - player] == "defect" for moves in self.played)
        return "defect" if betrayed else "cooperate"

    def cooperate(self, player: int, rng: np.random.Generator) -> str:
        """Cooperate always."""
        del player, rng
        return "cooperate"

    def defect(self, player: int, rng: np.random.Generator) -> str:
        """Defect always."""
        del player, rng
        return "defect"
