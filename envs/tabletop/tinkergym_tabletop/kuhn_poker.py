"""Kuhn poker: three cards, two players, one round of betting."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from tinkergym.games.text_game import TextGame

CARDS = ("jack", "queen", "king")
"""From the lowest to the highest."""

_BET_SHARE = {0: 1 / 3, 1: 0.0, 2: 1.0}
"""How often the equilibrium strategy bets with a card if nobody has bet; the first player's, for alpha =
1/3."""
_CALL_SHARE = ({0: 0.0, 1: 2 / 3, 2: 1.0}, {0: 0.0, 1: 1 / 3, 2: 1.0})
"""How often it calls a bet with a card, as the first and as the second player."""


class KuhnPoker(TextGame):
    """Poker with three cards: each player antes one chip and is dealt a card, and one chip may be bet.

    The reward is the number of chips won or lost. Neither player sees the other's card before the showdown.
    `equilibrium` plays an optimal mixed strategy, `honest` bets and calls only with the king.
    """

    agents = ("first", "second")
    opponents = ("random", "equilibrium", "honest")

    def begin(self, rng: np.random.Generator) -> None:
        """Deal a card to each."""
        self.begin_with(tuple(int(card) for card in rng.permutation(3)[:2]))

    def deals(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return every deal with its probability."""
        every = list(permutations(range(3), 2))
        return [(1 / len(every), deal) for deal in every]

    def begin_with(self, deal: tuple[int, ...]) -> None:
        """Begin with these cards, the first player's first."""
        self.cards = deal
        self.history: list[str] = []
        for player in (0, 1):
            self.tell(f"Kuhn poker. Your card: {CARDS[deal[player]]}.", player)

    def observe(self, player: int) -> str:
        """Return the possible moves, for the player to move."""
        return " or ".join(self.legal(player)) + "?" if player == len(self.history) % 2 else ""

    def legal(self, player: int) -> list[str]:
        """Return check and bet, or fold and call after a bet."""
        del player
        return ["fold", "call"] if self.history[-1:] == ["bet"] else ["check", "bet"]

    def play(self, player: int, move: str) -> list[float] | None:
        """Play the move; pays out at a fold or a showdown."""
        self.history.append(move)
        other = 1 - player
        if move == "fold":
            self.tell("You fold.", player)
            self.tell("The other player folds.", other)
            return _won_by(other, 1.0)
        if move == "call" or self.history == ["check", "check"]:
            for seat in (0, 1):
                self.tell(f"The other player's card: {CARDS[self.cards[1 - seat]]}.", seat)
            better = int(self.cards[1] > self.cards[0])
            return _won_by(better, 2.0 if move == "call" else 1.0)
        self.tell(f"The other player {move}s.", other)
        return None

    def view(self, player: int) -> dict[str, Any]:
        """Return the player's card and the moves so far."""
        card = ["your card", CARDS[self.cards[player]]]
        return {"kind": "table", "rows": [card, ["moves", ", ".join(self.history)]]}

    def equilibrium(self, player: int, rng: np.random.Generator) -> str:
        """Play a Nash equilibrium, which loses 1/18 chip a game as first player and wins it as second."""
        card = self.cards[player]
        passive, active = self.legal(player)
        share = _CALL_SHARE[player][card] if active == "call" else _BET_SHARE[card]
        return active if rng.random() < share else passive

    def honest(self, player: int, rng: np.random.Generator) -> str:
        """Bet and call with the king, check and fold without it."""
        del rng
        passive, active = self.legal(player)
        return active if self.cards[player] == 2 else passive


def _won_by(player: int, chips: float) -> list[float]:
    return [chips if seat == player else -chips for seat in (0, 1)]
