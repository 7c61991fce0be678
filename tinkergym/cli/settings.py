"""`key=value` on the command line to the nested settings that they mean."""

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
from tinkergym.schema.job_spec import JobSpec
from tinkergym.schema.jobs import PreferenceSpec
from tinkergym.schema.nested import merged
from tinkergym.schema.setting_errors import models_in
from tinkergym.user_code.quoting import raised


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs; dots lead into sections: `algorithm.group_size=4`.

    Values are JSON where they can be read as such (numbers, true, null, lists), else text.

    Raises:
        InvalidRequestError: a pair is no `key=value`, or a section is given a value too.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        *sections, name = key.split(".")
        if not equals or not name or not all(sections):
            raise InvalidRequestError(f"{pair!r} is no setting", hint="write it as key=value", field="--set")
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
    "algorithm": ("name", JobSpec),
    "adapter": ("kind", JobSpec),
    "loss": ("name", PreferenceSpec),
}
"""Parts of a job of which there are several, the setting that says which, and a kind of job that has it."""

ADAPTER = {"kind": "lora"}
"""What is trained unless something else is said."""


def with_settings(
    argument: str, defaults: dict[str, Any], options: dict[str, Any], pairs: Sequence[str] | None
) -> dict[str, Any]:
    """Put together what a command line says.

    Args:
        argument: The name of what stands on it without a name.
        defaults: What holds unless something else is said.
        options: What options of their own say, None where they were not given.
        pairs: What `--set` says.

    Raises:
        InvalidRequestError: a pair is no setting, or says again what an option says.
    """
    options, settings = given(**options), parse_settings(pairs or [])
    for name, value in settings.items():
        if name in _SECTIONS and isinstance({**defaults, **options}.get(name), dict):
            _refuse_for_a_section(name, value)
    said = [argument, *_dotted(options)]
    for name in _dotted(settings):
        # Also what is above or below it: one of the two would win.
        if any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in said):
            raise InvalidRequestError(
                f"{name} is given twice, by an option or argument of its own and by --set",
                hint="say it once",
                field="--set",
            )
    return merged(defaults, options, settings)


def _refuse_for_a_section(name: str, value: Any) -> None:
    if isinstance(value, dict):
        return
    raise InvalidRequestError(
        f"cannot be {value!r}: it has settings of its own, with dots",
        hint=_which(name, value),
        field=name,
    )


def _both(name: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name!r} is given a value and settings below it",
        hint=_which(name, value) if name in _SECTIONS else "",
        field="--set",
    )


def _which(name: str, value: Any) -> str:
    """Say how it is written which one of several a part of a job is."""
    inner, spec = _SECTIONS[name]
    names = [str(model.model_fields[inner].default) for model in models_in(spec, name)]
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    if not close:
        return f"write --set {name}.{inner}=NAME with one of {', '.join(names)}"
    return f"write --set {name}.{inner}={close[0]}"


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in settings.items():
        # A section in which nothing is said says nothing itself.
        names += _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return names


def given(**options: Any) -> dict[str, Any]:
    """Leave out what was not given, so that the schema's own defaults hold."""
    return {name: value for name, value in options.items() if value is not None}


def adapter_settings(*, full: bool, rank: int | None) -> dict[str, Any] | None:
    """Return what `--full` and `--rank` say of the adapter; None if nothing.

    Raises:
        InvalidRequestError: both are given.
    """
    if full and rank is not None:
        raise InvalidRequestError(
            "--full trains all parameters, without an adapter that could have a --rank",
            hint="leave one of them out",
            field="--rank",
        )
    if rank is not None:
        return {"rank": rank}
    return {"kind": "full"} if full else None


def find_environment(name: str) -> EnvSource:
    """Return an id or a `ws://` address as it is, and the class or function that `module:Name` names.

    Raises:
        InvalidRequestError: the module cannot be imported or has no such name.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or is_environment_url(name):
        return name
    # As `python -m` does: modules beside the user's script can be named.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with imported(module_name):
            module = importlib.import_module(module_name)
    except TinkerGymError:
        raise
    except ImportError as error:
        raise InvalidRequestError(
            f"{name!r} names no environment: {error}",
            hint="write an id as `tinkergym envs` lists them, or module:ClassName, without .py",
            field="ENV",
        ) from error
    except Exception as error:  # whatever the user's module does
        raise InvalidRequestError(
            f"{module_name!r} cannot be imported: {raised(error)}", hint="mend it", field="ENV"
        ) from error
    try:
        found: EnvSource = getattr(module, attribute)
    except AttributeError as error:
        raise InvalidRequestError(
            f"{name!r} names no environment: {error}", hint=_names_in(module, attribute), field="ENV"
        ) from error
    return found


def environments(one: str | None, several: Sequence[str] | None) -> tuple[EnvSources, list[str]]:
    """Return what a command line says to train in, and its names: one argument, or `--env ENV:WEIGHT` ones.

    Raises:
        InvalidRequestError: neither or both are given, or a weight is missing.
    """
    if (one is None) == (not several):
        raise InvalidRequestError(
            "the environment is given by an argument or by --env, one of the two",
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
        # The port of ws://HOST:8300 is no weight.
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
    """Say which class or function of a module was meant, or else which it has of its own."""
    callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    close = difflib.get_close_matches(attribute, callables, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(f'{module.__name__}:{name}' for name in close)}?"
    own = [name for name in callables if getattr(vars(module)[name], "__module__", "") == module.__name__]
    return f"{module.__name__} has {', '.join(own[:10])}" if own else "write module:ClassName"


def environment_maker(name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that makes the environment (or the game) that the command line names.

    Raises:
        UnknownEnvironmentError: nothing registers the id; the text has close matches.
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
            f"{name} cannot be made: {error}", hint=hint, field="environment"
        ) from error
    if isinstance(made, TextGame):
        from tinkergym.games.against_opponent import AgainstOpponent
        from tinkergym.games.game_env import GameEnv

        return AgainstOpponent(GameEnv(made))
    if not hasattr(made, "step") or not hasattr(made, "reset"):
        raise InvalidEnvironmentError(
            f"{name} makes no environment, but {type(made).__name__}",
            hint="name a gymnasium.Env, a TextGame, or a function that returns one",
            field="environment",
        )
    return made


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
