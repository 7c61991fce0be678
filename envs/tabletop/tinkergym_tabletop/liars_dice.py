"""Liar's dice for three: hidden dice, bids, and players who drop out."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame

_PLAYERS = 3
_FACES = 6


class LiarsDice(TextGame):
    """Three players roll hidden dice and bid how many of all dice show a face; each bid exceeds the last.

    `liar` doubts the last bid: if it was too high its bidder loses a die, else the doubter does, and all roll
    again. A player without dice is out. The first one out gets -1, the next 0, and the last one left 1.
    `cautious` doubts a bid that is more likely wrong than right, and otherwise makes the lowest possible bid.
    """

    players = _PLAYERS
    opponents = ("random", "cautious")

    def __init__(self, dice: int = 1) -> None:
        """Set the dice.

        Args:
            dice: Dice per player at the start, from 1 to 5.

        Raises:
            InvalidRequestError: It is out of range.
        """
        if not 1 <= dice <= 5:
            raise InvalidRequestError(f"must be from 1 to 5, not {dice!r}", field="dice")
        self.dice = dice

    def begin(self, rng: np.random.Generator) -> None:
        """Roll, and draw the first player."""
        self._rng = rng
        self.left = [self.dice] * _PLAYERS
        self.turn = int(rng.integers(_PLAYERS))
        self.tell("Liar's dice. Bid COUNTxFACE, such as 2x5, or say liar.")
        self._roll()

    def _roll(self) -> None:
        self.hands = [sorted(int(n) for n in self._rng.integers(1, _FACES + 1, count)) for count in self.left]
        self.bid: tuple[int, int] | None = None
        self.bidder = -1
        for player in range(_PLAYERS):
            if self.left[player]:
                shown = ", ".join(map(str, self.hands[player]))
                self.tell(f"You rolled {shown}. Dice in play: {sum(self.left)}.", player)

    def observe(self, player: int) -> str:
        """Return the current bid."""
        del player
        return "No bid yet." if self.bid is None else f"The bid: {_text(self.bid)}"

    def legal(self, player: int) -> list[str]:
        """Return all higher bids, and `liar` if there is a bid."""
        del player
        last = self.bid or (0, _FACES)
        bids = [(count, face) for count in range(1, sum(self.left) + 1) for face in range(1, _FACES + 1)]
        return [*(["liar"] if self.bid else []), *(_text(bid) for bid in bids if bid > last)]

    def play(self, player: int, move: str) -> list[float] | None:
        """Bid, or doubt and roll again."""
        others = [other for other in range(_PLAYERS) if other != player and self.left[other]]
        if move != "liar":
            named, shown = move.split("x")
            self.bid, self.bidder = (int(named), int(shown)), player
            self.tell(f"player_{player} bids {move}.", *others)
            self.turn = self._after(player)
            return None
        assert self.bid is not None
        count, face = self.bid
        there = sum(hand.count(face) for hand in self.hands)
        loser = player if there >= count else self.bidder
        self.left[loser] -= 1
        self.tell(
            f"player_{player} doubts {_text(self.bid)} of player_{self.bidder}: there are {there}. "
            f"player_{loser} loses a die."
        )
        return self._lost(loser)

    def view(self, player: int) -> dict[str, Any]:
        """Return the player's dice, how many the others have, and the bid."""
        rows = [
            [name, str(self.left[seat]), " ".join(map(str, self.hands[seat])) if seat == player else ""]
            for seat, name in enumerate(self.player_names)
        ]
        bid = "no bid" if self.bid is None else f"{_text(self.bid)} by player_{self.bidder}"
        return {"kind": "table", "title": bid, "columns": ["player", "dice", "rolled"], "rows": rows}

    def _lost(self, loser: int) -> list[float] | None:
        alive = [player for player in range(_PLAYERS) if self.left[player]]
        if len(alive) == 1:
            return [1.0 if player == alive[0] else 0.0 for player in range(_PLAYERS)]
        if not self.left[loser]:
            self.eliminate(loser, -1.0)
        self.turn = loser if self.left[loser] else self._after(loser)
        self._roll()
        return None

    def _after(self, player: int) -> int:
        return next(seat for step in range(1, _PLAYERS + 1) if self.left[seat := (player + step) % _PLAYERS])

    def first_player(self) -> int:
        """Return the first player."""
        return self.turn

    def next_player(self, player: int) -> int:
        """Return whose turn it is."""
        del player
        return self.turn

    def cautious(self, player: int, rng: np.random.Generator) -> str:
        """Doubt an unlikely bid, else bid as low as possible, preferably its best face."""
        del rng
        legal = self.legal(player)
        hand, hidden = self.hands[player], sum(self.left) - self.left[player]
        if self.bid is not None and (
            _chance(self.bid[0] - hand.count(self.bid[1]), hidden) < 0.5 or legal == ["liar"]
        ):
            return "liar"
        bids = [move for move in legal if move != "liar"]
        best = max(set(hand), key=hand.count)
        lowest = int(bids[0].split("x")[0])
        mine = f"{lowest}x{best}"
        return mine if mine in bids else bids[0]


def _text(bid: tuple[int, int]) -> str:
    return f"{bid[0]}x{bid[1]}"


def _chance(needed: int, dice: int) -> float:
    """Return the probability that at least `needed` of this many hidden dice show a face."""
    if needed <= 0:
        return 1.0
    ways = sum(comb(dice, hits) * (_FACES - 1) ** (dice - hits) for hits in range(needed, dice + 1))
    return float(ways / _FACES**dice)
