"""Signals: a cooperative referential game. A speaker names a target, a listener finds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame

_OBJECTS = ("red", "blue", "green", "black", "white", "pink", "gold", "grey")
_WORDS = ("ba", "do", "ki", "mu", "fe", "la", "so", "ti")
_SPEAKER, _LISTENER = 0, 1


class Signals(TextGame):
    """The speaker sees the target and says a meaningless word; the listener hears it and picks an object.

    Both earn 1 in a round if the listener picks the target, else 0, so the two have to agree on a code.
    `code` uses the first word for the first object, and so on.
    """

    players = ("the speaker", "the listener")
    agents = ("speaker", "listener")
    opponents = ("code", "random")

    def __init__(self, objects: int = 4, rounds: int = 1) -> None:
        """Set the size.

        Args:
            objects: Number of objects and of words, from 2 to 8.
            rounds: Rounds per game, from 1 to 50. After each, both are told the target.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        for field, value, least, most in (("objects", objects, 2, 8), ("rounds", rounds, 1, 50)):
            if not least <= value <= most:
                raise InvalidRequestError(f"must be from {least} to {most}, not {value!r}", field=field)
        self.rounds = rounds
        self.objects, self.words = list(_OBJECTS[:objects]), list(_WORDS[:objects])
        self.metadata: dict[str, Any] = {"turns": "single" if rounds == 1 else "multi"}  # type: ignore[misc]

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the first target."""
        self._rng = rng
        self.done = 0
        self.found = 0
        self.word = ""
        self._draw()
        self.tell(f"Words: {', '.join(self.words)}.", _SPEAKER)
        self.tell(f"Objects: {', '.join(self.objects)}.", _LISTENER)

    def _draw(self) -> None:
        self.target = self.objects[int(self._rng.integers(len(self.objects)))]
        self.tell(f"Target: {self.target}.", _SPEAKER)

    def legal(self, player: int) -> list[str]:
        """Return the words for the speaker, the objects for the listener."""
        return self.words if player == _SPEAKER else self.objects

    def play(self, player: int, move: str) -> list[float] | None:
        """Say the word, or pick an object and end the round."""
        if player == _SPEAKER:
            self.word = move
            self.tell(f"Word: {move}.", _LISTENER)
            return None
        hit = float(move == self.target)
        self.done += 1
        self.found += int(hit)
        for seat in (_SPEAKER, _LISTENER):
            self.tell(f"The target was {self.target}, the listener picked {move}.", seat)
        if self.done == self.rounds:
            return [hit, hit]
        for seat in (_SPEAKER, _LISTENER):
            self.give(seat, hit)
        self._draw()
        return None

    def view(self, player: int) -> dict[str, Any]:
        """Return the target for the speaker, and the word for the listener."""
        shown = ["target", self.target] if player == _SPEAKER else ["word", self.word]
        return {"kind": "table", "rows": [shown, ["found", f"{self.found} of {self.done}"]]}

    def verdict(self, player: int, total: float) -> str:
        """Return how many targets were found."""
        del player, total
        return f"Found {self.found} of {self.rounds}."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return the share of targets that were found."""
        del player, total
        return {"found": self.found / self.rounds}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Fine the team: both lose if one breaks the rules."""
        del losers
        return [-1.0, -1.0]

    def code(self, player: int, rng: np.random.Generator) -> str:
        """Say or understand the word with the object's number."""
        del rng
        if player == _SPEAKER:
            return self.words[self.objects.index(self.target)]
        return self.objects[self.words.index(self.word)]
