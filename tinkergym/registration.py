"""Environments by id: those you register, and those of installed packs."""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Callable
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
from tinkergym.pack_output import output_to_stderr
from tinkergym.packs import ENVIRONMENTS, Pack, claim_of, find_packs, ids_of, load
from tinkergym.wire import EnvironmentRef

_lock = threading.RLock()
_own_ids: set[str] = set()


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


def unregister(id: str) -> None:  # noqa: A002 - as above
    """Forget an environment that `register` was called with; one that is not known is no error."""
    with _lock:
        if id in _own_ids:
            _own_ids.discard(id)
            gym.registry.pop(id, None)


def make(id: str, **kwargs: Any) -> gym.Env[Any, Any]:  # noqa: A002 - as above
    """Create an environment by id, from a pack or from `register`.

    Raises:
        UnknownEnvironmentError: Nothing is registered under this id.
        InvalidRequestError: An argument is no JSON value.
        InvalidEnvironmentError: Its pack cannot be imported, or its constructor failed; the cause has the
            traceback.
    """
    if id not in gym.registry:
        find_packs()  # it may have been installed since this process began
    if id not in gym.registry:
        raise UnknownEnvironmentError(f"no environment is called {id!r}", hint=_suggestion(id))
    refuse_other_than_json(id, kwargs)
    claim = claim_of(ENVIRONMENTS, id)
    if claim is not None:
        load(claim)
    try:
        with contextlib.nullcontext() if claim is None else output_to_stderr():
            # The checker warns about things that EnvContract tests, and slows every step.
            return gym.make(id, disable_env_checker=True, **kwargs)
    except TinkerGymError:
        raise
    # A constructor may be foreign code; `sys.exit` there must not end the program either.
    except (Exception, SystemExit) as error:
        raise InvalidEnvironmentError(
            f"{id} could not be created with {kwargs}: {type(error).__name__}: {error}",
            hint=_argument_hint(error, id, kwargs) or "check the environment's arguments",
            field="environment",
        ) from error


def make_environment(reference: EnvironmentRef) -> gym.Env[Any, Any]:
    """Create the environment that a job names."""
    return make(reference.id, **reference.kwargs)


def registered() -> list[str]:
    """Return the ids of all packs and of everything registered here, sorted."""
    find_packs()
    return sorted({*_own_ids, *ids_of(ENVIRONMENTS)})


def pack_of(id: str) -> Pack | None:  # noqa: A002 - as above
    """Return the pack that an environment belongs to, or None."""
    return next((pack for pack in find_packs() if id in pack.environment_ids), None)


def _argument_hint(error: BaseException, id: str, kwargs: dict[str, Any]) -> str:  # noqa: A002 - as above
    return argument_hint(error, _constructor(id), kwargs, gym.registry[id].kwargs)


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


def _is_game(id: str) -> bool:  # noqa: A002 - as above
    from tinkergym.games.registry import registered_games  # which registers its environments here

    return id in registered_games()


def _suggestion(id: str) -> str:  # noqa: A002 - as above
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
    hints += [refusal for pack in find_packs() for refusal in pack.refused if repr(id) in refusal]
    return "; ".join(hints)
