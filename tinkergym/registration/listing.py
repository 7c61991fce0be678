"""List installed environments of all packs, with their metadata.

Packs are imported in a child process (`listing_child.py`): one that hangs, exits or crashes is named, and the
others are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, get_args

from tinkergym.registration.listing_process import ListingProcess, ProcessLostError
from tinkergym.registration.packs import Pack, find_packs, registered_games
from tinkergym.tasks.grid import Data, Turns
from tinkergym.user_code.quoting import printable

MAKE_SECONDS = 20.0
"""An environment that takes longer to create is listed without the details that need an instance."""

_MOST_LOST = 3
"""The number of processes that one pack may crash; its remaining environments are listed without being
created."""
_MOST_SPLITS = 100
_MOST_CHARACTERS = {"error": 2000}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEnvironment:
    """One entry of the list."""

    id: str
    turns: str = ""
    """`single` or `multi`; empty if not declared."""
    data: str = ""
    """`free` or `dependent`; empty if not declared."""
    observation_space: str = ""
    action_space: str = ""
    splits: tuple[str, ...] = ()
    game: str = ""
    """The id of the game for `make_game`, if this is a game against an opponent."""
    pack: str = ""
    distribution: str = ""
    version: str = ""
    error: str = ""
    """Why it could not be created, if so."""

    @property
    def cell(self) -> str:
        """Both kinds in words."""
        return f"{self.turns}-turn, data-{self.data}" if self.turns and self.data else ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "splits": list(self.splits)}


def list_environments(packs: Iterable[Pack] | None = None) -> Iterator[ListedEnvironment]:
    """Create each environment of each pack once and yield its details, or why it cannot be created.

    No pack is imported in this process.

    Args:
        packs: The packs; None means all installed ones.
    """
    games = frozenset(registered_games())
    with closing(_Processes()) as processes:
        for pack in find_packs() if packs is None else packs:
            lost = 0
            for env_id in pack.environment_ids:
                if lost < _MOST_LOST:
                    said, ended = processes.ask(env_id)
                    lost += ended
                else:
                    said = {"error": f"not created: {_MOST_LOST} others of this pack crashed their process"}
                yield ListedEnvironment(
                    id=env_id,
                    pack=pack.name,
                    distribution=pack.distribution,
                    version=pack.version,
                    **_checked(said, games),
                )


class _Processes:
    """The process in which environments are created; replaced when it is lost."""

    def __init__(self) -> None:
        self._process: ListingProcess | None = None

    def ask(self, env_id: str) -> tuple[dict[str, Any], bool]:
        """Return an environment's details, and whether creating it ended a process."""
        is_fresh = self._process is None
        try:
            if self._process is None:
                self._process = ListingProcess()
            return self._process.ask(env_id, seconds=MAKE_SECONDS), False
        except ProcessLostError as error:
            self.close()
            # Another environment created earlier in that process may be the cause: an environment is only
            # blamed for what it does in a process of its own.
            return ({"error": error.message}, True) if is_fresh else self.ask(env_id)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _checked(said: dict[str, Any], games: frozenset[str]) -> dict[str, Any]:
    """Return what can be shown of an answer; the environment's code could have written anything into it."""
    found: dict[str, Any] = {
        name: printable(said[name][: _MOST_CHARACTERS.get(name, 500)])
        for name in ("observation_space", "action_space", "error")
        if isinstance(said.get(name), str)
    }
    for name, known in (("turns", get_args(Turns)), ("data", get_args(Data)), ("game", games)):
        if isinstance(said.get(name), str) and said[name] in known:
            found[name] = said[name]
    if isinstance(said.get("splits"), list):
        found["splits"] = tuple(printable(str(split)[:200]) for split in said["splits"][:_MOST_SPLITS])
    return found
