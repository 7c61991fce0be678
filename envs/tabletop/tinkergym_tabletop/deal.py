"""Deal: two players negotiate freely and divide a pile that each values differently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import numpy as np

from tinkergym.errors import IllegalMoveError, InvalidRequestError
from tinkergym.games.text_game import TextGame

_ITEMS = ("books", "hats", "balls")
_WORTH = 10
"""Total worth of the pile to each player."""
_MOST_CHARACTERS = 400


class Deal(TextGame):
    """Divide books, hats and balls; each player only knows what they are worth to themselves.

    On a turn a player says anything to the other, or `offer 1 0 2` - the books, hats and balls that the
    speaker would keep -, or `accept`. An agreement pays each player a tenth of what their share is worth to
    them; without an agreement within the turns nobody earns anything. `fair` asks for at least six tenths and
    accepts half.
    """

    opponents = ("fair", "random")

    def __init__(self, turns: int = 10) -> None:
        """Set the length.

        Args:
            turns: Turns of both players together, from 2 to 100. The players are told.

        Raises:
            InvalidRequestError: It is out of range.
        """
        if not 2 <= turns <= 100:
            raise InvalidRequestError(f"must be from 2 to 100, not {turns!r}", field="turns")
        self.turns = turns

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the pile and its worth to each player."""
        while True:
            self.pile = [int(count) for count in rng.integers(1, 4, 3)]
            worths = [
                list(worth)
                for worth in product(range(_WORTH + 1), repeat=3)
                if sum(n * each for n, each in zip(self.pile, worth, strict=True)) == _WORTH
            ]
            if len(worths) > 1:
                break
        self.worths = [worths[int(rng.integers(len(worths)))] for _ in (0, 1)]
        self.left = self.turns
        self.offer: list[int] | None = None
        """What the player who made the last offer would keep."""
        self.offered_by = -1
        """Who made it. Only the other player can accept it, no matter how often both spoke since."""
        for player in (0, 1):
            pile = ", ".join(
                f"{count} {item} worth {worth} each"
                for count, item, worth in zip(self.pile, _ITEMS, self.worths[player], strict=True)
            )
            self.tell(
                f"Divide: {pile}. Say anything, offer BOOKS HATS BALLS (what you keep), or accept.", player
            )

    def observe(self, player: int) -> str:
        """Return the remaining turns."""
        del player
        return f"Turns left: {self.left}"

    def legal(self, player: int) -> list[str]:
        """Return all offers, and `accept` after an offer by the other; any other text is a message."""
        offers = [f"offer {a} {b} {c}" for a, b, c in product(*(range(count + 1) for count in self.pile))]
        return [*(["accept"] if self._may_accept(player) else []), *offers]

    def read(self, player: int, action: str) -> Any:
        """Return the offer as numbers, `accept`, or what is said, in one line."""
        words = action.split()
        if not words:
            raise IllegalMoveError("an empty message")
        if len(action) > _MOST_CHARACTERS:
            raise IllegalMoveError(f"a message of more than {_MOST_CHARACTERS} characters")
        first = words[0].casefold()
        if first == "accept" and len(words) == 1:
            if not self._may_accept(player):
                raise IllegalMoveError("there is no offer by the other player to accept")
            return "accept"
        if first != "offer":
            return " ".join(words)
        kept = [int(word) for word in words[1:] if word.isascii() and word.isdecimal() and len(word) < 3]
        if (
            len(words) != 4
            or len(kept) != 3
            or any(n > most for n, most in zip(kept, self.pile, strict=True))
        ):
            raise IllegalMoveError("an offer of more than there is: write it as offer 1 0 2")
        return kept

    def play(self, player: int, move: Any) -> list[float] | None:
        """Send a message, make an offer, or accept."""
        self.left -= 1
        if move == "accept" and self.offer is not None:
            theirs = self.offer
            mine = [count - kept for count, kept in zip(self.pile, theirs, strict=True)]
            self.tell("The other accepts.", 1 - player)
            return self._payoffs(player, mine, theirs)
        if isinstance(move, list):
            self.offer, self.offered_by = move, player
            shares = ", ".join(
                f"{count - kept} {item}" for count, kept, item in zip(self.pile, move, _ITEMS, strict=True)
            )
            self.tell(f"The other offers you {shares}.", 1 - player)
        else:
            self.tell(f"The other says: {move}", 1 - player)
        if self.left:
            return None
        self.tell("No agreement.")
        return [0.0, 0.0]

    def view(self, player: int) -> dict[str, Any]:
        """Return the pile, what it is worth to the player, and the last offer."""
        offered = self.offer or [0, 0, 0]
        mine = self.offered_by == player
        rows = [
            [item, str(count), str(worth), "" if self.offer is None else str(kept if mine else count - kept)]
            for item, count, worth, kept in zip(_ITEMS, self.pile, self.worths[player], offered, strict=True)
        ]
        columns = ["item", "count", "worth to you", "you would get"]
        return {"kind": "table", "title": f"turns left: {self.left}", "columns": columns, "rows": rows}

    def _may_accept(self, player: int) -> bool:
        return self.offer is not None and self.offered_by != player

    def _payoffs(self, player: int, mine: list[int], theirs: list[int]) -> list[float]:
        paid = [0.0, 0.0]
        for seat, share in ((player, mine), (1 - player, theirs)):
            paid[seat] = self._worth(seat, share) / _WORTH
        return paid

    def _worth(self, player: int, share: list[int]) -> int:
        return sum(count * each for count, each in zip(share, self.worths[player], strict=True))

    def verdict(self, player: int, total: float) -> str:
        """Return what the player earned."""
        del player
        return f"You earned {total:g}."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return whether there was a deal with a positive value for the player."""
        del player
        return {"agreed": float(total > 0)}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Fine the player who broke the rules; the other gains nothing."""
        return [-1.0 if player in losers else 0.0 for player in (0, 1)]

    def fair(self, player: int, rng: np.random.Generator) -> str:
        """Accept at least half, else offer the most generous split that keeps six tenths."""
        del rng
        if self.offer is not None and self._may_accept(player):
            left = [count - kept for count, kept in zip(self.pile, self.offer, strict=True)]
            if self._worth(player, left) >= _WORTH // 2:
                return "accept"
        shares = [list(share) for share in product(*(range(count + 1) for count in self.pile))]
        enough = [share for share in shares if self._worth(player, share) >= 6]
        kept = min(enough, key=lambda share: (sum(share), share))
        return "offer " + " ".join(map(str, kept))
