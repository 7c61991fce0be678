"""Which ids are games: those of packs, and those registered in this process."""

from __future__ import annotations

from typing import Any, Protocol

from tinkergym.registration.pack_metadata import GAMES
from tinkergym.registration.packs import find_packs, ids_of


class RegisteredGame(Protocol):
    """A game that was registered in this process."""

    @property
    def name(self) -> str:
        """Its location: `module:attribute`."""

    def create(self, on_illegal: str | None, render_mode: str | None, settings: dict[str, Any]) -> Any:
        """Return it as a PettingZoo AEC environment."""


registered_here: dict[str, RegisteredGame] = {}
"""Games by id."""


def registered_games() -> list[str]:
    """Return the ids of all games of packs and of this process, sorted."""
    find_packs()
    return sorted({*registered_here, *ids_of(GAMES)})
