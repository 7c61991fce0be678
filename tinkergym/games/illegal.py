"""What becomes of an illegal move: one setting, written the same way everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from tinkergym.errors import InvalidRequestError

_MOST_RETRIES = 1000
# An illegal move is quoted to whoever made it; this much of it is enough to recognise it.
_QUOTED_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class IllegalPolicy:
    """`lose`, `random` or `retry:N`."""

    kind: Literal["lose", "random", "retry"]
    retries: int = 0
    """How many further tries a turn has; the one after them loses."""

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Read the setting.

        Args:
            setting: `lose`: an illegal move loses at once. `random`: a random legal move is played instead.
                `retry:N`: the player is told so and tries again, up to N times in a turn, and then loses.

        Raises:
            InvalidRequestError: It is none of these.
        """
        if setting == "lose":
            return cls("lose")
        if setting == "random":
            return cls("random")
        found = re.fullmatch(r"retry:(\d{1,4})", setting) if isinstance(setting, str) else None
        if found is None or not 1 <= int(found[1]) <= _MOST_RETRIES:
            raise InvalidRequestError(
                f"{setting!r} is no rule for illegal moves",
                hint=f"choose 'lose', 'random' or 'retry:N' with N from 1 to {_MOST_RETRIES}",
                field="on_illegal",
            )
        return cls("retry", int(found[1]))

    def __str__(self) -> str:
        return f"retry:{self.retries}" if self.kind == "retry" else self.kind


def quoted_action(action: str) -> str:
    """Return the beginning of an action as a literal, safe to show whatever is in it."""
    return ascii(action[:_QUOTED_CHARACTERS])


def read_legal(action: str, legal: list[str]) -> str | None:
    """Return the legal move that an action names, None if it names none.

    Space around it and the case of its letters are forgiven, other words beside it are not: a policy that
    pays for a sentence should learn to answer with the move. The time does not depend on what the action says
    beyond its length.
    """
    word = action.strip()
    if word in legal:
        return word
    # Before the text is folded: a megabyte that cannot be a move is not copied.
    if len(word) > 2 * max(map(len, legal), default=0) + 1:
        return None
    folded = word.casefold()
    return next((move for move in legal if move.casefold() == folded), None)
