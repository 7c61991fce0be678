"""Environments by id: those you register, and those that installed packs bring along.

A pack is a distribution with an entry point in the group `tinkergym.envs`: either a function that registers
its environments, or a module that does so when imported.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import re
import site
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from tinkergym.arguments import argument_hint, refuse_other_than_json
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    TinkerGymError,
    UnknownEnvironmentError,
)
from tinkergym.wire import EnvironmentRef

ENTRY_POINT_GROUP = "tinkergym.envs"

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_packs: dict[tuple[str, str], Pack] = {}
"""By distribution and entry point."""
_own_ids: set[str] = set()
_missing: dict[str, str] = {}
"""What is to be installed, by the ids that cannot be registered without."""
_named: set[str] = set()
"""Ids that `register` was called with since the pack that is being loaded began, known already or not."""
_tables: list[dict[str, Any]] = [gym.registry, _missing]
"""What packs write into, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """An installed pack of environments, loaded or broken."""

    name: str
    distribution: str
    version: str
    environment_ids: tuple[str, ...]
    error: str = ""
    """The traceback, if it could not be loaded."""


def register(
    id: str,  # noqa: A002 - Gymnasium's own name for it
    entry_point: str | Callable[..., gym.Env[Any, Any]],
    *,
    kwargs: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Make an environment known to `tinkergym.make` and `gymnasium.make`.

    Registering the same thing again does nothing, and a class that was defined anew (a notebook cell run
    twice) replaces its predecessor.

    Args:
        id: `namespace/Name-v0`.
        entry_point: The class, a function that returns an environment, or `module:Class`.
        kwargs: Default arguments; JSON values only, since they travel with a job.
        settings: Passed on to `gymnasium.register`.

    Raises:
        InvalidRequestError: The id belongs to another environment, or an argument is no JSON value.
    """
    refuse_other_than_json(id, kwargs or {})
    with _lock:
        known = gym.registry.get(id)
        if known is not None:
            if _name(known.entry_point) != _name(entry_point):
                raise InvalidRequestError(
                    f"{id} is already registered for {_name(known.entry_point)}",
                    hint="choose another name or version",
                    field="id",
                )
            del gym.registry[id]
        gym.register(id, entry_point, kwargs=dict(kwargs or {}), **settings)
        _own_ids.add(id)
        _named.add(id)


def unregister(id: str) -> None:  # noqa: A002 - as above
    """Forget an environment that `register` was called with; one that is not known is no error."""
    with _lock:
        if id in _own_ids:
            _own_ids.discard(id)
            gym.registry.pop(id, None)


def register_missing(id: str, needs: str) -> None:  # noqa: A002 - as above
    """Note what an environment or a game waits for that its pack could not register without.

    Args:
        id: Under which it would be registered.
        needs: What to install, a sentence.
    """
    _missing[id] = needs


def undo_with_packs(table: dict[str, Any]) -> None:
    """Name one more table that packs write into by id: what a pack wrote that then failed is taken back."""
    _tables.append(table)


def why_missing(id: str) -> str:  # noqa: A002 - as above
    """Return what to install for an id that its pack could not register; empty for all others."""
    return _missing.get(id, "")


def make(id: str, **kwargs: Any) -> gym.Env[Any, Any]:  # noqa: A002 - as above
    """Create an environment by id, from a pack or from `register`.

    Raises:
        UnknownEnvironmentError: Nothing is registered under this id.
        InvalidRequestError: An argument is no JSON value.
        InvalidEnvironmentError: Its constructor failed; the cause has the traceback.
    """
    # An id that is known needs no packs, and a script's own environment must not wait for them.
    if id not in gym.registry:
        load_packs()
    if id not in gym.registry:
        raise UnknownEnvironmentError(f"no environment is called {id!r}", hint=_suggestion(id))
    refuse_other_than_json(id, kwargs)
    try:
        # The checker warns about things that EnvContract tests, and slows every step.
        return gym.make(id, disable_env_checker=True, **kwargs)
    except TinkerGymError:
        raise
    except Exception as error:
        raise InvalidEnvironmentError(
            f"{id} could not be created with {kwargs}: {type(error).__name__}: {error}",
            hint=argument_hint(error, _constructor(id), kwargs, gym.registry[id].kwargs)
            or "check the environment's arguments",
            field="environment",
        ) from error


def make_environment(reference: EnvironmentRef) -> gym.Env[Any, Any]:
    """Create the environment that a job names."""
    return make(reference.id, **reference.kwargs)


def load_packs() -> list[Pack]:
    """Load every installed pack that is not loaded yet and return them all.

    A broken pack is logged, listed with its error, and harms no other: what it registered before it failed is
    taken back. It is tried again by the next call.
    """
    with _lock:
        packs = []
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
            key = point.dist.name if point.dist else "", point.name
            last_error = _packs[key].error if key in _packs else ""
            if key not in _packs or last_error:
                _packs[key] = _load(point, last_error)
            packs.append(_packs[key])
        return packs


def registered() -> list[str]:
    """Return the ids of all packs and of everything registered here, sorted."""
    packs = load_packs()
    return sorted({*_own_ids, *(name for pack in packs for name in pack.environment_ids)})


def pack_of(id: str) -> Pack | None:  # noqa: A002 - as above
    """Return the pack that brought an environment along, or None."""
    return next((pack for pack in load_packs() if id in pack.environment_ids), None)


def _load(point: EntryPoint, last_error: str) -> Pack:
    before = set(gym.registry)
    take_back = _remember(_package(point.module))
    _named.clear()
    error = ""
    try:
        loaded = _import(point)
        if callable(loaded):
            loaded()
    # A pack is foreign code; sys.exit at its import must not end the program either.
    except (Exception, SystemExit):
        error = traceback.format_exc()
        if error != last_error:  # it is tried again by each call, and fails in the same way most often
            _log.warning(
                "the environment pack %r could not be loaded and is left out:\n%s", point.name, error
            )
    # A script may have imported the pack before, and then all of its ids are known already.
    # Not those that the SDK itself makes: every game has its entry point there, whoever registered it.
    package = _package(point.module)
    known = {
        name
        for name, spec in gym.registry.items()
        if package != "tinkergym" and _package(_name(spec.entry_point)) == package
    }
    claimed = {name for pack in _packs.values() if pack.name != point.name for name in pack.environment_ids}
    if error:
        take_back(claimed)
    environment_ids = set() if error else (set(gym.registry) - before) | _named | (known - claimed)
    distribution = point.dist
    return Pack(
        name=point.name,
        distribution=distribution.name if distribution else "",
        version=distribution.version if distribution else "",
        environment_ids=tuple(sorted(environment_ids)),
        error=error,
    )


def _remember(package: str) -> Callable[[set[str]], None]:
    """Return what puts everything back as it is now, but for the ids that other packs have claimed."""
    before = {id(table): dict(table) for table in _tables}
    own_ids, modules = set(_own_ids), set(sys.modules)

    def take_back(claimed: set[str]) -> None:
        for table in _tables:
            earlier = before.get(id(table), {})
            for name in set(table) - set(earlier) - claimed:
                del table[name]
            table.update(earlier)
        _own_ids.intersection_update(own_ids | claimed)
        # The next try has to import them anew: Python forgets the module that failed, and not those inside
        # the pack that were imported by then, which registered something too.
        for name in set(sys.modules) - modules if package != "tinkergym" else ():
            if _package(name) == package:
                del sys.modules[name]

    return take_back


def _import(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if error.name != _package(point.module) or point.dist is None:
            raise
    # Installed with `pip install -e` after this process began: where it lies is said by a .pth file, and
    # Python reads those only when it starts.
    site.addsitedir(str(point.dist.locate_file("")))
    importlib.invalidate_caches()
    return point.load()


def _constructor(id: str) -> object:  # noqa: A002 - as above
    """Return what makes an environment, or None if that cannot be had."""
    entry_point = gym.registry[id].entry_point
    with contextlib.suppress(
        Exception
    ):  # foreign code, and we are on the way to report what is wrong with it
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return None


def _name(entry_point: object) -> str:
    if isinstance(entry_point, str):
        return entry_point
    return f"{getattr(entry_point, '__module__', '?')}:{getattr(entry_point, '__qualname__', entry_point)}"


def _package(entry_point: str) -> str:
    return entry_point.partition(":")[0].partition(".")[0]


def _is_game(id: str) -> bool:  # noqa: A002 - as above
    from tinkergym.games.registry import registered_games  # which registers its environments here

    return id in registered_games()


def _suggestion(id: str) -> str:  # noqa: A002 - as above
    if needs := why_missing(id):
        return needs
    known = registered()
    close = difflib.get_close_matches(id, known, n=3, cutoff=0.6)
    if _is_game(id):
        against = re.sub(r"(-v\d+)$", r"Vs\1", id)
        hints = [
            "that is a game, in which several play by turns; "
            + (f"{against} is the environment against an opponent, " if against in known else "")
            + f"and tinkergym.make_game({id!r}) the game itself, for wrappers.AgainstOpponent"
        ]
    elif close:
        hints = [f"did you mean {', '.join(close)}?"]
    else:
        hints = ["`tinkergym envs` lists what is installed"]
        if id.isidentifier():  # neither a namespace nor a version: rather the name of a class
            hints.append(f"on the command line a class of your own is named with its module, module:{id}")
    for pack in load_packs():
        if pack.error:
            hints.append(f"the pack {pack.name!r} is broken: {pack.error.strip().splitlines()[-1]}")
    return "; ".join(hints)
