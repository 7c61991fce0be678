"""Environments by id: those that you register, and those of installed packs."""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    TinkerGymError,
    UnknownEnvironmentError,
)
from tinkergym.registration.arguments import argument_hint, refuse_other_than_json
from tinkergym.registration.pack_metadata import ENVIRONMENTS
from tinkergym.registration.pack_output import output_to_stderr
from tinkergym.registration.packs import (
    Pack,
    claim_of,
    find_packs,
    ids_of,
    load,
    refuse_interrupt,
    registered_games,
)
from tinkergym.schema.ids import environment_namespace
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.user_code.quoting import raised

_lock = threading.RLock()
_own_ids: set[str] = set()


def register(
    id: str,  # noqa: A002 - Gymnasium's own name for it
    entry_point: str | Callable[..., gym.Env[Any, Any]],
    *,
    kwargs: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Register an environment with `tinkergym.make` and `gymnasium.make`.

    Registering the same thing again does nothing, and a redefined class (a notebook cell run twice) replaces
    the old one.

    Args:
        id: `namespace/Name-v0`.
        entry_point: The class, a function that returns an environment, or `module:Class`.
        kwargs: Default arguments; only JSON values, because they are sent with a job.
        settings: Passed to `gymnasium.register`.

    Raises:
        InvalidRequestError: The id belongs to another environment, or an argument is not a JSON value.
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
    """Unregister an environment. An unknown id is ignored."""
    with _lock:
        if id in _own_ids:
            _own_ids.discard(id)
            gym.registry.pop(id, None)


def require_known(id: str) -> None:  # noqa: A002 - as above
    """Check that an id is registered, without importing a pack.

    Raises:
        UnknownEnvironmentError: The id is not registered.
    """
    if id not in gym.registry:
        find_packs()  # It may have been installed since this process started.
    if id not in gym.registry:
        raise UnknownEnvironmentError(f"there is no environment {id!r}", hint=_suggestion(id))


def make(id: str, **kwargs: Any) -> gym.Env[Any, Any]:  # noqa: A002 - as above
    """Create an environment by id, from a pack or from `register`.

    Raises:
        UnknownEnvironmentError: The id is not registered.
        InvalidRequestError: An argument is not a JSON value.
        InvalidEnvironmentError: Its pack cannot be imported, or its constructor failed; the cause has the
            traceback.
    """
    require_known(id)
    refuse_other_than_json(id, kwargs)
    claim = claim_of(ENVIRONMENTS, id)
    if claim is not None:
        load(claim)
    try:
        with contextlib.nullcontext() if claim is None else output_to_stderr():
            # The checker warns about things that EnvContract tests, and slows down every step.
            return gym.make(id, disable_env_checker=True, **kwargs)
    except TinkerGymError as error:
        # A game that refuses an argument does not know the arguments of the environment around it.
        if error.__cause__ is None or not (hint := _argument_hint(error.__cause__, id, kwargs)):
            _name_environment(error, id)
            raise
        raise InvalidEnvironmentError(
            f"{id} could not be created with {kwargs}: {raised(error.__cause__)}",
            hint=hint,
            field="environment",
        ) from error
    # A constructor may be foreign code; `sys.exit` there must not end the program either.
    except BaseException as error:
        refuse_interrupt(error)
        raise InvalidEnvironmentError(
            f"{id} could not be created with {kwargs}: {raised(error)}",
            hint=_argument_hint(error, id, kwargs) or "check the environment's arguments",
            field="environment",
        ) from error


def make_environment(reference: EnvironmentRef) -> gym.Env[Any, Any]:
    """Create the environment of a job.

    Raises:
        InvalidRequestError: An argument is called `id`.
    """
    if "id" in reference.kwargs:
        raise InvalidRequestError(
            f"{reference.id} cannot have an argument named id, because gymnasium.make already has one",
            hint="give the environment's argument another name",
            field="environment.kwargs.id",
        )
    return make(reference.id, **reference.kwargs)


def registered() -> list[str]:
    """Return the ids of all packs and of everything registered in this process, sorted."""
    find_packs()
    return sorted({*_own_ids, *ids_of(ENVIRONMENTS)})


def pack_of(id: str) -> Pack | None:  # noqa: A002 - as above
    """Return the pack of an environment or a game, or None."""
    return next((pack for pack in find_packs() if id in (*pack.environment_ids, *pack.game_ids)), None)


def _argument_hint(error: BaseException, id: str, kwargs: dict[str, Any]) -> str:  # noqa: A002 - as above
    return argument_hint(error, _constructor(id), kwargs, gym.registry[id].kwargs)


def _name_environment(error: TinkerGymError, id: str) -> None:  # noqa: A002 - as above
    """Make a game's error name the requested environment instead of the game."""
    game = gym.registry[id].kwargs.get("game") or re.sub(r"Vs(-v\d+)$", r"\1", id)
    if game != id and id not in error.message:
        error.message = error.message.replace(game, id)


def _constructor(id: str) -> object:  # noqa: A002 - as above
    """Return the constructor of an environment, or None if it is not available."""
    entry_point = gym.registry[id].entry_point
    with contextlib.suppress(Exception):  # Foreign code, called while reporting another error.
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return None


def _name(entry_point: object) -> str:
    if isinstance(entry_point, str):
        return entry_point
    return f"{getattr(entry_point, '__module__', '?')}:{getattr(entry_point, '__qualname__', entry_point)}"


def _suggestion(id: str) -> str:  # noqa: A002 - as above
    known = registered()
    namespace = environment_namespace(id).lower() + "/"
    # Also those of the script's own that it registered with Gymnasium under this namespace.
    beside = [name for name in {*known, *gym.registry} if name.lower().startswith(namespace)]
    close = difflib.get_close_matches(id, sorted({*known, *beside}), n=3, cutoff=0.6)
    if id in registered_games():
        against = re.sub(r"(-v\d+)$", r"Vs\1", id)
        hints = [
            "that is a game for several players; "
            + (f"use {against} for an environment with an opponent, " if against in known else "")
            + f"tinkergym.make_game({id!r}) for the game itself, or `tinkergym eval --crossplay` to match "
            "players"
        ]
    elif "/" in id and not beside:
        hints = [
            f"no pack with environments {environment_namespace(id)}/... is installed where it would be "
            "created; install it there (tinkergym's own: `pip install ./envs/NAME` in a checkout)",
            *([f"or did you mean {', '.join(close)}?"] if close else []),
        ]
    elif close:
        hints = [f"did you mean {', '.join(close)}?"]
    else:
        hints = ["`tinkergym envs` lists what is installed"]
        if id.isidentifier():  # Neither a namespace nor a version, so it may be a class name.
            hints.append(f"on the command line, name your own class with its module: module:{id}")
    hints += [refusal for pack in find_packs() for refusal in pack.refused if repr(id) in refusal]
    return "; ".join(hints)
