"""What is installed here: every environment of every pack, with what its metadata says of it."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, TinkerGymError
from tinkergym.games.registry import registered_games
from tinkergym.grid import cell_of
from tinkergym.packs import Pack, find_packs
from tinkergym.registration import make

MAKE_SECONDS = 20.0
"""An environment that takes longer to be made is listed without what only it could say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEnvironment:
    """One line of the list."""

    id: str
    turns: str = ""
    """`single` or `multi`; empty where the environment does not say."""
    data: str = ""
    """`free` or `dependent`; empty where the environment does not say."""
    observation_space: str = ""
    action_space: str = ""
    splits: tuple[str, ...] = ()
    game: str = ""
    """The id of the game, for `make_game`, where this is a game against an opponent."""
    pack: str = ""
    distribution: str = ""
    version: str = ""
    error: str = ""
    """Why it could not be made, if so."""

    @property
    def cell(self) -> str:
        """Both axes in words."""
        return f"{self.turns}-turn, data-{self.data}" if self.turns and self.data else ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "splits": list(self.splits)}


def list_environments(packs: Iterable[Pack] | None = None) -> Iterator[ListedEnvironment]:
    """Make each environment of each pack once and yield what it says; one that cannot be made says why.

    Args:
        packs: Whose environments; None takes all that are installed.
    """
    games = frozenset(registered_games())
    for pack in find_packs() if packs is None else packs:
        for env_id in pack.environment_ids:
            yield _listed(env_id, pack, games)


def space_text(space: object) -> str:
    """Return a space in a few words: `Text`, `Dict(text: Text)`, `Discrete(4)`."""
    if isinstance(space, gym.spaces.Dict):
        return f"Dict({', '.join(f'{key}: {space_text(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple({', '.join(map(space_text, space.spaces))})"
    # How many characters a text may have is rarely what one looks for.
    return type(space).__name__ if type(space).__module__.startswith("tinkergym.") else str(space)


def _listed(env_id: str, pack: Pack, games: frozenset[str]) -> ListedEnvironment:
    origin: dict[str, Any] = {
        "id": env_id,
        "pack": pack.name,
        "distribution": pack.distribution,
        "version": pack.version,
    }
    found: dict[str, Any] = {}
    # A daemon: an environment that hangs must not keep the list from ending.
    thread = threading.Thread(target=_look, args=(env_id, games, found), daemon=True)
    # What it prints must not end up in a list that a program reads. Not inside the thread, which may never
    # come back to undo it.
    with contextlib.redirect_stdout(sys.stderr):
        thread.start()
        thread.join(MAKE_SECONDS)
    if thread.is_alive():
        found = {"error": f"it was not made within {MAKE_SECONDS:g} s"}
    return ListedEnvironment(**origin, **found)


def _look(env_id: str, games: frozenset[str], found: dict[str, Any]) -> None:
    said: dict[str, Any] = {}
    try:
        env = make(env_id)
        said["observation_space"] = space_text(env.observation_space)
        said["action_space"] = space_text(env.action_space)
        said["splits"] = tuple(map(str, (env.metadata or {}).get("splits", ())))
        with contextlib.suppress(InvalidEnvironmentError):
            cell = cell_of(env)
            said |= {"turns": cell.turns, "data": cell.data}
        named = (env.spec.kwargs.get("game") if env.spec else None, re.sub(r"Vs(-v\d+)$", r"\1", env_id))
        said["game"] = next((name for name in named if name in games), "")
        env.close()
    except TinkerGymError as error:
        said["error"] = error.message
    # Foreign code: whatever it raises is a line of the list.
    except BaseException as error:
        said["error"] = f"{type(error).__name__}: {error}"
    found.update(said)
