"""Nim with one heap, for two players in turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinkergym.games.text_game import TextGame


class Nim(TextGame):
    """Take 1, 2 or 3 stones; whoever takes the last one wins. The seed draws the size of the heap."""

    opponents = ("random", "perfect")

    def begin(self, rng: np.random.Generator) -> None:
        """Make a heap of 8 to 15 stones."""
        self.left = int(rng.integers(8, 16))
        self.tell("Take 1, 2 or 3 stones in turn; who takes the last one wins.")

    def observe(self, player: int) -> str:
        """Return the number of stones left."""
        del player
        return f"Stones: {self.left}"

    def legal(self, player: int) -> list[str]:
        """Return the numbers of stones that can be taken."""
        del player
        return ["1", "2", "3"][: self.left]

    def play(self, player: int, move: str) -> float | None:
        """Take this many stones."""
        del player
        self.left -= int(move)
        return 1.0 if self.left == 0 else None

    def view(self, player: int) -> dict[str, Any]:
        """Return the heap."""
        del player
        return {"kind": "board", "rows": ["●" * self.left or "."]}

    def gold(self, player: int) -> str:
        """Leave a multiple of four if possible."""
        del player
        return str(self.left % 4 or 1)

    def perfect(self, player: int, rng: np.random.Generator) -> str:
        """Leave a multiple of four if possible, else take any number."""
        legal = self.legal(player)
        return self.gold(player) if self.left % 4 else legal[int(rng.integers(len(legal)))]
