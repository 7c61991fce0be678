"""Games by id: register a game with `make_game`, and its environment with `gymnasium.make`."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    TinkerGymError,
    UnknownEnvironmentError,
)
from tinkergym.games.parallel import with_turns
from tinkergym.games.text_game import TextGame
from tinkergym.registration import environments as registration
from tinkergym.registration.arguments import argument_hint
from tinkergym.registration.pack_metadata import GAMES
from tinkergym.registration.pack_output import output_to_stderr
from tinkergym.registration.packs import (
    Claim,
    RegisteredGame,
    claim_of,
    find_packs,
    load,
    refuse_interrupt,
    registered_games,
    registered_here,
)
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.user_code.quoting import raised

if TYPE_CHECKING:
    from pettingzoo import AECEnv

    from tinkergym.games.against_opponent import AgainstOpponent

_ENTRY_POINT = f"{__name__}:make_against_opponent"


@dataclass(frozen=True, slots=True)
class _Registered:
    make: Callable[..., TextGame]
    kwargs: dict[str, Any]
    opponents: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.make.__module__}:{self.make.__qualname__}"

    def create(self, on_illegal: str | None, render_mode: str | None, settings: dict[str, Any]) -> AECEnv:
        game = self.make(**{**self.kwargs, **settings})
        game.opponents = self.opponents
        return _as_environment(game, on_illegal, render_mode)


@dataclass(frozen=True, slots=True)
class _RegisteredAec:
    name: str
    kwargs: dict[str, Any]

    def create(self, on_illegal: str | None, render_mode: str | None, settings: dict[str, Any]) -> AECEnv:
        make = pkgutil.resolve_name(self.name)
        taken = _parameters(make)
        chosen = {"on_illegal": on_illegal, "render_mode": render_mode}
        for name, value in chosen.items():
            if value is not None and not _takes(taken, name):
                raise InvalidRequestError(f"{self.name} has no {name}", hint="leave it out", field=name)
        chosen = {name: value for name, value in chosen.items() if _takes(taken, name)}
        return make(**{**self.kwargs, **chosen, **settings})


@dataclass(frozen=True, slots=True)
class _FromPack:
    claim: Claim

    def create(self, on_illegal: str | None, render_mode: str | None, settings: dict[str, Any]) -> AECEnv:
        make = load(self.claim)
        chosen = {"on_illegal": on_illegal, "render_mode": render_mode}
        taken = _parameters(make)
        try:
            with output_to_stderr():
                made = make(**settings, **{name: value for name, value in chosen.items() if name in taken})
                if isinstance(made, TextGame):
                    return _as_environment(made, on_illegal, render_mode)
        except TinkerGymError:
            raise
        # A pack is foreign code; `sys.exit` in it must not end the program either.
        except BaseException as error:
            refuse_interrupt(error)
            raise InvalidEnvironmentError(
                f"{self.claim.id} could not be created with {settings}: {raised(error)}",
                hint=argument_hint(error, make, settings) or "check the game's arguments",
                field="environment",
            ) from error
        if not hasattr(made, "possible_agents"):
            raise InvalidEnvironmentError(
                f"{self.claim.target} of {self.claim.distribution} returned a {type(made).__name__}",
                hint="return a TextGame or a PettingZoo environment",
                field="environment",
            )
        if on_illegal is not None and "on_illegal" not in taken:
            raise InvalidRequestError(
                f"{self.claim.id} has its own rule for illegal moves", hint="leave it out", field="on_illegal"
            )
        return made


def register_game(
    id: str,  # noqa: A002 - Gymnasium's own name for it
    game: type[TextGame],
    *,
    opponents: Sequence[str] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> str:
    """Register a game by its id, and the environment against an opponent by the id with `Vs`.

    For example, `board/TicTacToe-v0` is for `make_game`, and `board/TicTacToeVs-v0` for `make` and
    `gymnasium.make`. A game for one player has no opponent and uses one id for both.

    Args:
        id: `namespace/Name-v0`.
        game: The class of the rules.
        opponents: Opponents by name, the default first: `random`, and names of methods
            `(player, rng) -> action` of the game. By default the game's own list.
        kwargs: Default arguments of the class; only JSON values, because they are sent with a job.

    Returns:
        The id of the Gymnasium environment.

    Raises:
        InvalidRequestError: The id is invalid or belongs to another game, or an opponent has no method.
    """
    found = re.fullmatch(r"(.+?)(-v\d+)", id)
    if found is None:
        raise InvalidRequestError(f"{id!r} has no version", hint="call it namespace/Name-v0", field="id")
    names = tuple(game.opponents if opponents is None else opponents)
    for name in names:
        if name != "random" and not callable(getattr(game, name, None)):
            raise InvalidRequestError(
                f"{game.__name__} has no method {name}(player, rng) for that opponent", field="opponents"
            )
    registered = _Registered(game, dict(kwargs or {}), names)
    _refuse_another(id, registered.name)
    alone = isinstance(game.players, int) and game.players == 1
    env_id = id if alone else f"{found[1]}Vs{found[2]}"
    defaults: dict[str, Any] = {} if alone else {"opponent": names[0], "seat": "seed"}
    registration.register(
        env_id, _ENTRY_POINT, kwargs={"game": id, **defaults, "on_illegal": game.on_illegal, **(kwargs or {})}
    )
    registered_here[id] = registered
    return env_id


def register_aec(
    id: str,  # noqa: A002 - as above
    entry_point: str,
    *,
    kwargs: dict[str, Any] | None = None,
) -> None:
    """Register a PettingZoo environment with `make_game`, AEC or parallel. It is imported when first created.

    Its observations must be text, or mappings with text under `text`. It is not registered with `make`: use
    `AgainstOpponent` to make a Gymnasium environment of it.

    Args:
        id: `namespace/Name-v0`.
        entry_point: `module:attribute` of its constructor, called with the settings, and with `on_illegal`
            and `render_mode`, which are None unless set, if it has such parameters.
        kwargs: Default settings; only JSON values.

    Raises:
        InvalidRequestError: The entry point is invalid, or the id belongs to another game.
    """
    if not re.fullmatch(r"[\w.]+:\w+", entry_point):
        raise InvalidRequestError(
            f"{entry_point!r} is not a valid entry point", hint="write module:attribute", field="entry_point"
        )
    _refuse_another(id, entry_point)
    registered_here[id] = _RegisteredAec(entry_point, dict(kwargs or {}))


def make_game(
    id: str,  # noqa: A002 - as above
    *,
    on_illegal: str | None = None,
    render_mode: str | None = None,
    **settings: Any,
) -> AECEnv:
    """Create a game as a PettingZoo AEC environment, from a pack, `register_game` or `register_aec`.

    A parallel environment is converted: see `parallel_games.md`.

    Args:
        id: The registered id.
        on_illegal: How an illegal move is handled: `lose`, `random` or `retry:N`.
        render_mode: With `ansi`, `render` returns the game as text.
        settings: Arguments of the game.

    Raises:
        UnknownEnvironmentError: There is no game with this id.
        InvalidEnvironmentError: It cannot be created; the cause has the traceback.
        InvalidRequestError: The game has no `on_illegal` or `render_mode`.
    """
    made: AECEnv = with_turns(_find(id).create(on_illegal, render_mode, settings))
    return made


def make_playable(reference: EnvironmentRef) -> Any:
    """Create the environment or game in which a job's episodes are played.

    Raises:
        UnknownEnvironmentError: The id is not registered.
    """
    if is_game(reference.id):
        settings: dict[str, Any] = dict(reference.kwargs)
        return make_game(reference.id, **settings)
    return registration.make_environment(reference)


def is_game(id: str) -> bool:  # noqa: A002 - as above
    """Whether an id names a game with several seats rather than a Gymnasium environment."""
    return id not in gym.registry and _known(id) is not None


def make_against_opponent(
    game: str,
    *,
    opponent: Any = None,
    seat: str = "seed",
    on_illegal: str | None = None,
    render_mode: str | None = None,
    **settings: Any,
) -> AgainstOpponent:
    """Create the Gymnasium environment of a game: one seat against an opponent.

    A pack's factory returns `make_against_opponent("namespace/Name-v0", **settings)`.
    """
    from tinkergym.games.against_opponent import AgainstOpponent

    aec_env = make_game(game, on_illegal=on_illegal, render_mode=render_mode, **settings)
    return AgainstOpponent(aec_env, opponent=opponent, seat=seat, render_mode=render_mode)


def _as_environment(game: TextGame, on_illegal: str | None, render_mode: str | None) -> AECEnv:
    from tinkergym.games.game_env import GameEnv

    return GameEnv(game, on_illegal=on_illegal, render_mode=render_mode)


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # For a function that is not written in Python.
        return {}


def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _refuse_another(id: str, name: str) -> None:  # noqa: A002 - as above
    known, claim = registered_here.get(id), claim_of(GAMES, id)
    owner = claim.target if claim is not None else known.name if known is not None else name
    if owner != name:
        raise InvalidRequestError(
            f"{id} is already registered for {owner}",
            hint="choose another name or version",
            field="id",
        )


def _known(id: str) -> RegisteredGame | _FromPack | None:  # noqa: A002 - as above
    """Return a game of this process or of a pack, or None.

    Every episode asks, so the packs are read again only for an unknown id.
    """
    if id in registered_here:
        return registered_here[id]
    if claim_of(GAMES, id) is None:
        find_packs()  # It may have been installed since this process started.
    claim = claim_of(GAMES, id)
    return None if claim is None else _FromPack(claim)


def _find(id: str) -> RegisteredGame | _FromPack:  # noqa: A002 - as above
    found = _known(id)
    if found is not None:
        return found
    close = difflib.get_close_matches(id, registered_games(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else "register it with tinkergym.register_game"
    raise UnknownEnvironmentError(f"there is no game {id!r}", hint=hint)
