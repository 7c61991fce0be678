"""How an illegal move is handled: one setting with the same syntax everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from tinkergym.errors import InvalidRequestError

_MOST_RETRIES = 1000
# Enough of an illegal move to recognize it when it is quoted to the player.
_QUOTED_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class IllegalPolicy:
    """`lose`, `random` or `retry:N`."""

    kind: Literal["lose", "random", "retry"]
    retries: int = 0
    """The number of retries per turn; one more illegal move loses."""

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Parse the setting.

        Args:
            setting: `lose`: an illegal move loses at once. `random`: a random legal move is played instead.
                `retry:N`: the player is told and may try again, up to N times per turn, and then loses.

        Raises:
            InvalidRequestError: It is not one of these.
        """
        if setting == "lose":
            return cls("lose")
        if setting == "random":
            return cls("random")
        found = re.fullmatch(r"retry:(\d{1,4})", setting) if isinstance(setting, str) else None
        if found is None or not 1 <= int(found[1]) <= _MOST_RETRIES:
            raise InvalidRequestError(
                f"{setting!r} is not a rule for illegal moves",
                hint=f"choose 'lose', 'random' or 'retry:N' with N from 1 to {_MOST_RETRIES}",
                field="on_illegal",
            )
        return cls("retry", int(found[1]))

    def __str__(self) -> str:
        return f"retry:{self.retries}" if self.kind == "retry" else self.kind


def quoted_action(action: str) -> str:
    """Return the beginning of an action as a literal that is safe to show."""
    return ascii(action[:_QUOTED_CHARACTERS])


def read_legal(action: str, legal: list[str]) -> str | None:
    """Return the legal move that an action names; None if it is not one.

    Surrounding whitespace and case are ignored, but additional words are not accepted: a policy should learn
    to answer with the move alone. The time depends only on the action's length.
    """
    word = action.strip()
    if word in legal:
        return word
    # Checked before case folding, so that a megabyte that cannot be a move is not copied.
    if len(word) > 2 * max(map(len, legal), default=0) + 1:
        return None
    folded = word.casefold()
    return next((move for move in legal if move.casefold() == folded), None)
