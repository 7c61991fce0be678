"""A scripted player for `pick_and_place_simple`: it searches for the object, takes it and brings it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_TASK = re.compile(r"put an? (\w+) in (\w+)")


class Searcher:
    """Knows only what is shown; opens and searches one place after the other."""

    def __init__(self, rng: random.Random, *, mistakes: float = 0.0) -> None:
        """Create it.

        Args:
            rng: The source of randomness.
            mistakes: How often it wastes a turn: it asks what it carries, looks around, or tries something
                impossible with what is there. An imitator then learns to go on after a failure, and has
                something to improve.
        """
        self._rng, self._mistakes = rng, mistakes
        self._thing, self._place, self._here = "", "", ""
        self._searched: set[str] = set()
        self._holds = False

    def reset(self, observation: str) -> None:
        """Read the task.

        Raises:
            ValueError: It has a different type.
        """
        found = _TASK.search(observation)
        if found is None:
            raise ValueError(f"this player only puts one thing somewhere: {observation[-80:]!r}")
        self._thing, self._place = found[1], found[2]
        self._here, self._searched, self._holds = "", set(), False

    def act(self, commands: Sequence[str]) -> str:
        """Choose one of the possible commands, or make a mistake."""
        if self._rng.random() < self._mistakes:
            return self._waste(commands)
        command = self._sensible(commands)
        if command.startswith("go to "):
            self._here = command.removeprefix("go to ")
            self._searched.add(self._here)
        elif command.startswith("take "):
            self._holds = command.startswith(f"take {self._thing} ")
        elif command.startswith("move "):
            self._holds = False
        return command

    def _waste(self, commands: Sequence[str]) -> str:
        thing, here = f"{self._thing} 1", self._here
        tried = [f"go to {here}", f"open {here}", f"take {thing} from {here}", f"move {thing} to {here}"]
        impossible = [command for command in tried if command not in commands]
        asks = not here or self._rng.random() < 2 / 3
        return self._rng.choice(["inventory", "look"] if asks else impossible)

    def _sensible(self, commands: Sequence[str]) -> str:
        wanted = f"{self._place} " if self._holds else ""
        brings = [c for c in commands if c.startswith(f"move {self._thing} ") and f" to {wanted}" in c]
        takes = [
            c for c in commands if c.startswith(f"take {self._thing} ") and f" from {self._place} " not in c
        ]
        opens = [c for c in commands if c == f"open {self._here}"]
        if self._holds and brings:
            return brings[0]
        if not self._holds and takes:
            return takes[0]
        if opens and (not self._holds or self._here.startswith(wanted)):
            return opens[0]
        ways = [c for c in commands if c.startswith("go to ")]
        if self._holds:
            return next((c for c in ways if c.startswith(f"go to {wanted}")), ways[0])
        new = [c for c in ways if c.removeprefix("go to ") not in self._searched]
        return self._rng.choice(new or ways)
