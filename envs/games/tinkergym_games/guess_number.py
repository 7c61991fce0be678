"""Guess my number: a game for one player."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame

_HIGHEST = 10_000


class GuessNumber(TextGame):
    """Find a number drawn by the seed; after each guess you learn whether it is higher or lower."""

    players = 1

    def __init__(self, highest: int = 20, guesses: int = 5) -> None:
        """Set the range.

        Args:
            highest: The number is from 1 to this, at most 10,000.
            guesses: Number of guesses; the last one ends the game.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        for field, value, most in (("highest", highest, _HIGHEST), ("guesses", guesses, highest)):
            if not 1 <= value <= most:
                raise InvalidRequestError(f"must be from 1 to {most}, not {value!r}", field=field)
        self.highest, self.guesses = highest, guesses
        self._all = [str(number) for number in range(1, highest + 1)]

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the number."""
        self.number = int(rng.integers(1, self.highest + 1))
        self.left = self.guesses
        self.low, self.high = 1, self.highest
        self.tell(f"Guess my number from 1 to {self.highest}. You have {self.guesses} guesses.")

    def legal(self, player: int) -> list[str]:
        """Return all numbers in the range."""
        del player
        return self._all

    def play(self, player: int, move: str) -> float | None:
        """Guess: 1 for the number, 0 when the guesses are used up."""
        guess = int(move)
        self.left -= 1
        if guess == self.number:
            return 1.0
        if guess < self.number:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        if self.left == 0:
            return 0.0
        self.tell("Higher." if guess < self.number else "Lower.", player)
        return None

    def view(self, player: int) -> dict[str, Any]:
        """Return what is known about the number."""
        del player
        rows = [["from", str(self.low)], ["to", str(self.high)], ["guesses left", str(self.left)]]
        return {"kind": "table", "rows": rows}

    def gold(self, player: int) -> str:
        """Halve the remaining range."""
        del player
        return str((self.low + self.high) // 2)

    def verdict(self, player: int, total: float) -> str:
        """Name the number."""
        del player
        return "Right." if total > 0 else f"It was {self.number}."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Whether it was found, and how many guesses were made."""
        del player
        return {"won": float(total > 0), "guesses": float(self.guesses - self.left)}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Pay nothing for an invalid number: not finding it pays nothing either."""
        del losers
        return [0.0]
