"""Parse `key=value` on the command line into nested settings."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, TinkerGymError
from tinkergym.games.text_game import TextGame
from tinkergym.registration.arguments import argument_hint
from tinkergym.remote.imported import imported
from tinkergym.rollout.environment_mix import EnvSources
from tinkergym.rollout.local_environment import EnvSource, describe
from tinkergym.schema.environment_url import is_environment_url
from tinkergym.schema.jobs.dataset import PreferenceSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.nested import merged
from tinkergym.schema.setting_errors import models_in
from tinkergym.user_code.quoting import raised


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` pairs; dots lead into sections: `algorithm.group_size=4`.

    Values are parsed as JSON if possible (numbers, true, null, lists), else taken as text.

    Raises:
        InvalidRequestError: A pair is not `key=value`, or a section is also given a value.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        *sections, name = key.split(".")
        if not equals or not name or not all(sections):
            raise InvalidRequestError(
                f"{pair!r} is not a valid setting", hint="write it as key=value", field="--set"
            )
        section = settings
        for part in sections:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                raise _both(part, inner)
            section = inner
        value = _value(text)
        if isinstance(section.get(name), dict) and not isinstance(value, dict):
            raise _both(name, value)
        section[name] = value
    return settings


_SECTIONS: dict[str, tuple[str, type[BaseModel]]] = {
    "algorithm": ("name", RLSpec),
    "adapter": ("kind", RLSpec),
    "loss": ("name", PreferenceSpec),
}
"""Parts of a job with several variants, the setting that selects one, and a kind of job that has it."""

ADAPTER = {"kind": "lora"}
"""The default adapter."""


def with_settings(
    argument: str, defaults: dict[str, Any], options: dict[str, Any], pairs: Sequence[str] | None
) -> dict[str, Any]:
    """Combine the settings of a command line.

    Args:
        argument: The name of the positional argument.
        defaults: Default settings.
        options: Values of dedicated options; None if not given.
        pairs: The `--set` pairs.

    Raises:
        InvalidRequestError: A pair is not a valid setting, or repeats an option.
    """
    options, settings = given(**options), parse_settings(pairs or [])
    for name, value in settings.items():
        if name in _SECTIONS and isinstance({**defaults, **options}.get(name), dict):
            _refuse_for_a_section(name, value)
    said = [argument, *_dotted(options)]
    for name in _dotted(settings):
        # Check prefixes too: otherwise one of the two would win silently.
        if any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in said):
            raise InvalidRequestError(
                f"{name} is given twice, by its option or argument and by --set",
                hint="give it once",
                field="--set",
            )
    return merged(defaults, options, settings)


def _refuse_for_a_section(name: str, value: Any) -> None:
    if isinstance(value, dict):
        return
    raise InvalidRequestError(
        f"cannot be {value!r}: it is a section with its own settings, written with dots",
        hint=_which(name, value),
        field=name,
    )


def _both(name: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name!r} is given both a value and nested settings",
        hint=_which(name, value) if name in _SECTIONS else "",
        field="--set",
    )


def _which(name: str, value: Any) -> str:
    """Return how to write which variant of a part is meant."""
    inner, spec = _SECTIONS[name]
    names = [str(model.model_fields[inner].default) for model in models_in(spec, name)]
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    if not close:
        return f"write --set {name}.{inner}=NAME with one of {', '.join(names)}"
    return f"write --set {name}.{inner}={close[0]}"


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in settings.items():
        # Empty sections are left out.
        names += _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return names


def given(**options: Any) -> dict[str, Any]:
    """Leave out what was not given, so that the schema's defaults apply."""
    return {name: value for name, value in options.items() if value is not None}


def adapter_settings(*, full: bool, rank: int | None) -> dict[str, Any] | None:
    """Return the adapter for `--full` and `--rank`; None if neither is given.

    Raises:
        InvalidRequestError: Both are given.
    """
    if full and rank is not None:
        raise InvalidRequestError(
            "--full trains all parameters, so there is no adapter with a --rank",
            hint="leave one of them out",
            field="--rank",
        )
    if rank is not None:
        return {"rank": rank}
    return {"kind": "full"} if full else None


def find_environment(name: str) -> EnvSource:
    """Return an id or a `ws://` address unchanged, and the class or function for `module:Name`.

    Raises:
        InvalidRequestError: The module cannot be imported or has no such name.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or is_environment_url(name):
        return name
    # Like `python -m`: modules in the current folder can be used.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with imported(module_name):
            module = importlib.import_module(module_name)
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
    from tinkergym.registration.environments import make, registered

    env_id = found
    if is_environment_url(env_id):
        there = describe(env_id, kwargs)
        assert there.make is not None
        return partial(there.make, there.ref)
    if env_id not in registered():
        from tinkergym.registration.games import make_game
        from tinkergym.registration.known_games import registered_games

        if env_id in registered_games():
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
        from tinkergym.games.against_opponent import AgainstOpponent
        from tinkergym.games.game_env import GameEnv

        return AgainstOpponent(GameEnv(made))
    if not hasattr(made, "step") or not hasattr(made, "reset"):
        raise InvalidEnvironmentError(
            f"{name} does not create an environment, but a {type(made).__name__}",
            hint="use a gymnasium.Env, a TextGame, or a function that returns one",
            field="environment",
        )
    return made


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
