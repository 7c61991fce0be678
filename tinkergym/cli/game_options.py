"""Options of `tinkergym eval` for games, and what cross-play and exploitability check alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkergym.errors import InvalidRequestError

USUAL_PAIRS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class GameOptions:
    """The command line's options for games."""

    crossplay: str | None
    others: str | None
    pairs: int
    exploitability: str | None
    greedy: bool
    png: Path | None
    seed: int
    temperature: float | None
    as_json: bool

    @property
    def wanted(self) -> bool:
        """Whether a game is to be evaluated this way."""
        return self.crossplay is not None or self.exploitability is not None

    @property
    def of_crossplay(self) -> dict[str, bool]:
        """Which options were given that only apply to cross-play."""
        return {"--pairs": self.pairs != USUAL_PAIRS, "--others": self.others is not None}


def names_in(given: str | None) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def require_several(game: Any, option: str) -> None:
    """Check that a game has two agents or more.

    Raises:
        InvalidRequestError: It has not; the field is the option.
    """
    if len(getattr(game, "possible_agents", ())) < 2:
        raise InvalidRequestError(
            "needs a game for several players", hint="`tinkergym envs` lists games", field=option
        )
