"""Leduc poker: six cards, two betting rounds, and a public card between them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from tinkergym.games.text_game import TextGame

RANKS = ("jack", "queen", "king")
_BETS = (2, 4)
"""Size of a bet or a raise, by round."""
_MOST_RAISES = 2
"""Maximum bets and raises in one round."""


class LeducPoker(TextGame):
    """Poker with two jacks, two queens and two kings: a private card for each player and a public one.

    Each antes one chip. Bets are 2 chips in the first round and 4 in the second, with at most one raise after
    a bet. The public card is dealt between the rounds. A pair with it wins, else the higher card; equal cards
    split. The reward is the number of chips won or lost. `tight` bets with a king or a pair and folds jacks.
    """

    agents = ("first", "second")
    opponents = ("random", "tight")

    def begin(self, rng: np.random.Generator) -> None:
        """Deal a private card to each."""
        self._rng: np.random.Generator | None = rng
        self._start([int(card) for card in rng.permutation(6)])

    def deals(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return every deal of ranks - first, second, public - with its probability."""
        found: dict[tuple[int, ...], float] = {}
        every = list(permutations(range(6), 3))
        for cards in every:
            ranks = tuple(card // 2 for card in cards)
            found[ranks] = found.get(ranks, 0.0) + 1 / len(every)
        return [(chance, ranks) for ranks, chance in found.items()]

    def begin_with(self, deal: tuple[int, ...]) -> None:
        """Begin with these ranks; the third is dealt between the rounds."""
        self._rng = None
        # One card per rank represents both.
        self._start([2 * rank for rank in deal])

    def _start(self, cards: list[int]) -> None:
        self.ranks = [card // 2 for card in cards[:2]]
        self._deck = cards[2:]
        self.public: int | None = None
        self.paid = [1, 1]
        self.turn = 0
        self._open_round()
        for player in (0, 1):
            self.tell(f"Leduc poker. Your card: {RANKS[self.ranks[player]]}.", player)

    def _open_round(self) -> None:
        self.raises, self.moves, self.turn = 0, 0, 0

    def observe(self, player: int) -> str:
        """Return the chips and the possible moves, for the player to move."""
        if player != self.turn:
            return ""
        mine, theirs = self.paid[player], self.paid[1 - player]
        return f"You put in {mine}, the other {theirs}. {', '.join(self.legal(player))}?"

    def legal(self, player: int) -> list[str]:
        """Return check and bet, or the moves after a bet: fold, call and perhaps raise."""
        if self.paid[player] == self.paid[1 - player]:
            return ["check", "bet"]
        return ["fold", "call", "raise"] if self.raises < _MOST_RAISES else ["fold", "call"]

    def play(self, player: int, move: str) -> list[float] | None:
        """Play the move; deal the public card after the first round; pay out at a fold or a showdown."""
        other = 1 - player
        if move == "fold":
            self.tell("The other player folds.", other)
            return self._won_by(other)
        self.moves += 1
        self.tell(f"The other player {move}s.", other)
        if move in ("bet", "raise"):
            self.raises += 1
            self.paid[player] = self.paid[other] + _BETS[self.public is not None]
        else:
            self.paid[player] = self.paid[other]
        self.turn = other
        if move == "call" or (move == "check" and self.moves == 2):
            return self._round_ends()
        return None

    def view(self, player: int) -> dict[str, Any]:
        """Return the cards that the player knows, and the chips."""
        public = "" if self.public is None else RANKS[self.public]
        rows = [
            ["your card", RANKS[self.ranks[player]]],
            ["public card", public],
            ["your chips", str(self.paid[player])],
            ["the other's chips", str(self.paid[1 - player])],
        ]
        return {"kind": "table", "rows": rows}

    def _round_ends(self) -> list[float] | None:
        if self.public is not None:
            for seat in (0, 1):
                self.tell(f"The other player's card: {RANKS[self.ranks[1 - seat]]}.", seat)
            strength = [3 if rank == self.public else rank for rank in self.ranks]
            return [0.0, 0.0] if strength[0] == strength[1] else self._won_by(int(strength[1] > strength[0]))
        # Chance has its own turn: the card is drawn now, not when the game begins.
        index = 0 if self._rng is None else int(self._rng.integers(len(self._deck)))
        self.public = self._deck[index] // 2
        self._open_round()
        self.tell(f"Public card: {RANKS[self.public]}.")
        return None

    def next_player(self, player: int) -> int:
        """Return whose turn it is: the first player opens each round."""
        del player
        return self.turn

    def tight(self, player: int, rng: np.random.Generator) -> str:
        """Bet and raise with a king or a pair, call with a queen, check and fold with a jack."""
        del rng
        legal, rank = self.legal(player), self.ranks[player]
        strong = rank == 2 if self.public is None else rank == self.public
        wanted = ("raise", "bet", "call") if strong else ("check", "call") if rank else ("check", "fold")
        return next(move for move in wanted if move in legal)

    def _won_by(self, player: int) -> list[float]:
        chips = float(self.paid[1 - player])
        return [chips if seat == player else -chips for seat in (0, 1)]
