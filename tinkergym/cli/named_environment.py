"""The environment that a command line names: an id, `module:Name`, or a `ws://` address."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, TinkerGymError
from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.games.game_env import GameEnv
from tinkergym.games.text_game import TextGame
from tinkergym.registration.arguments import argument_hint
from tinkergym.registration.environments import make, registered
from tinkergym.registration.games import make_game
from tinkergym.registration.packs import registered_games
from tinkergym.remote.import_guard import import_for_definitions
from tinkergym.rollout.environment_mix import EnvSources
from tinkergym.rollout.local_environment import EnvSource, describe
from tinkergym.schema.names import is_environment_url
from tinkergym.user_code.quoting import raised


def find_environment(name: str) -> EnvSource:
    """Return an id or a `ws://` address unchanged, and the class or function for `module:Name`.

    Raises:
        InvalidRequestError: The module cannot be imported or has no such name.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or is_environment_url(name):
        return name
    try:
        module = import_for_definitions(module_name)
    except TinkerGymError:
        raise
    except ImportError as error:
        raise InvalidRequestError(
            f"{name!r} is not an environment: {error}",
            hint="use an id from `tinkergym envs`, or module:ClassName, without .py",
            field="ENV",
        ) from error
    except Exception as error:  # A user's module may raise anything.
        raise InvalidRequestError(
            f"{module_name!r} cannot be imported: {raised(error)}", hint="fix the import error", field="ENV"
        ) from error
    try:
        found: EnvSource = getattr(module, attribute)
    except AttributeError as error:
        raise InvalidRequestError(
            f"{name!r} is not an environment: {error}", hint=_names_in(module, attribute), field="ENV"
        ) from error
    return found


def environments(one: str | None, several: Sequence[str] | None) -> tuple[EnvSources, list[str]]:
    """Return the environments of a command line and their names: one argument, or `--env ENV:WEIGHT` options.

    Raises:
        InvalidRequestError: Neither or both are given, or a weight is missing.
    """
    if (one is None) == (not several):
        raise InvalidRequestError(
            "give the environment either as an argument or with --env",
            hint="write tinkergym train ENV, or tinkergym train --env ENV:0.7 --env OTHER:0.3",
            field="ENV",
        )
    if one is not None:
        return find_environment(one), [one]
    weighted = [_weighted(text) for text in several or []]
    return [(find_environment(name), weight) for name, weight in weighted], [name for name, _ in weighted]


def _weighted(text: str) -> tuple[str, float]:
    name, colon, weight = text.rpartition(":")
    try:
        # The port in ws://HOST:8300 is not a weight.
        if colon and not (is_environment_url(text) and "/" not in weight and name.count(":") < 2):
            return name, float(weight)
    except ValueError:
        pass
    raise InvalidRequestError(
        f"{text!r} has no weight",
        hint="write it as ENV:WEIGHT, such as math/Arithmetic-v0:0.3",
        field="--env",
    )


def _names_in(module: ModuleType, attribute: str) -> str:
    """Suggest a class or function of a module, or list its own."""
    callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    close = difflib.get_close_matches(attribute, callables, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(f'{module.__name__}:{name}' for name in close)}?"
    own = [name for name in callables if getattr(vars(module)[name], "__module__", "") == module.__name__]
    return f"{module.__name__} has {', '.join(own[:10])}" if own else "write module:ClassName"


def environment_maker(name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that creates the environment or game named on the command line.

    Raises:
        UnknownEnvironmentError: The id is not registered. The message has close matches.
        InvalidRequestError: `module:Name` cannot be found.
    """
    found = find_environment(name)
    if not isinstance(found, str):
        return partial(_make, name, found, kwargs)

    env_id = found
    if is_environment_url(env_id):
        there = describe(env_id, kwargs)
        assert there.make is not None
        return partial(there.make, there.ref)
    if env_id not in registered() and env_id in registered_games():
        return lambda: make_game(env_id, **kwargs)
    return lambda: make(env_id, **kwargs)


def _make(name: str, build: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        made = build(**kwargs)
    except TypeError as error:
        hint = argument_hint(error, build, kwargs)
        if not hint:
            raise
        raise InvalidEnvironmentError(
            f"{name} cannot be created: {error}", hint=hint, field="environment"
        ) from error
    if isinstance(made, TextGame):
        return AgainstOpponent(GameEnv(made))
    if not hasattr(made, "step") or not hasattr(made, "reset"):
        raise InvalidEnvironmentError(
            f"{name} does not create an environment, but a {type(made).__name__}",
            hint="use a gymnasium.Env, a TextGame, or a function that returns one",
            field="environment",
        )
    return made
