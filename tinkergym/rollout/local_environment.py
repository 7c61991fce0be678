"""Environments that live in the user's process: what the script passed, and how it is created.

The service only gets a name. The class, its code and its data stay in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.registration.arguments import built
from tinkergym.registration.environments import make_environment, require_known
from tinkergym.registration.games import is_game, make_playable
from tinkergym.registration.packs import find_packs, known_packs
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.view import InstalledPack
from tinkergym.schema.names import LOCAL, REMOTE_ID
from tinkergym.schema.parsing import environment_ref

EnvSource = str | type[AnyEnv] | Callable[..., AnyEnv]

_TAKING_TURNS = {"hold": "episode", "busy_seconds": 30.0}
"""The default for environments on a server, which may have fewer places than there are episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment to train in: its name in the service, and how this process creates it, if it can."""

    ref: EnvironmentRef
    make: MakeEnv | None
    """None: the id is unknown in this process."""

    @property
    def only_here(self) -> bool:
        """Whether it is unknown to every service."""
        return self.ref.id.startswith(LOCAL)


def describe(env: EnvSource, kwargs: Mapping[str, Any] | None = None) -> Environment:
    """Resolve what the user passed: a registered id, a class, or a function that creates environments.

    Raises:
        InvalidRequestError: It is not one of these, or `kwargs` is not a mapping.
    """
    if not isinstance(kwargs, Mapping | None):
        raise InvalidRequestError(
            f"must be a mapping of names to JSON values, not {kwargs!r:.80}",
            hint='write it as env_kwargs={"size": 5}',
            field="env_kwargs",
        )
    if isinstance(env, gym.Env):
        raise InvalidRequestError(
            f"{env.spec.id if env.spec else type(env).__name__} is a single environment, but several "
            f"episodes are played at once",
            hint=_how_to_hand_over(env),
            field="environment",
        )
    if not (isinstance(env, str) or callable(env)):
        raise InvalidRequestError(
            f"cannot train in {env!r}",
            hint="pass an environment id, a gymnasium.Env class, or a function that creates one",
            field="environment",
        )
    ref = environment_ref(env, dict(kwargs or {}))
    if ref.id == REMOTE_ID:
        return Environment(ref=ref, make=_remote(ref.kwargs.get("token")))
    if isinstance(env, str):
        return Environment(ref=ref, make=make_playable if _is_known(env) or is_game(env) else None)
    return Environment(ref=ref, make=_factory(env))


def describe_for_one(env: EnvSource, kwargs: Mapping[str, Any] | None = None) -> Environment:
    """Describe an environment in which one policy plays alone, as `describe` does.

    Raises:
        InvalidRequestError: As `describe`.
        UnknownEnvironmentError: It is a game for several players.
    """
    if isinstance(env, str) and is_game(env):
        require_known(env)
    return describe(env, kwargs)


def _how_to_hand_over(env: AnyEnv) -> str:
    name = type(env.unwrapped).__name__
    if env.spec is None:
        alone, made = f"the class {name}", f"{name}(...)"
    else:
        alone, made = f"its id {env.spec.id!r}", f"tg.make({env.spec.id!r})"
    # Those of Gymnasium, which `gymnasium.make` adds, mean nothing to the user.
    while isinstance(env, gym.Wrapper) and type(env).__module__.startswith("gymnasium."):
        env = env.env
    if not isinstance(env, gym.Wrapper):
        return f"pass {alone}, or a function that creates one: lambda: {made}"
    return f"pass a function that creates it with its wrappers: lambda: {type(env).__name__}({made}, ...)"


def for_job(env: EnvSource | None, ref: EnvironmentRef) -> MakeEnv:
    """Return how to create the environment of an existing job, for `attach`.

    Raises:
        InvalidRequestError: `env` is not the job's environment.
        UnknownEnvironmentError: It is not known in this process.
    """
    found = describe(ref.id if env is None else env, ref.kwargs)
    # A class given for an id that is not registered here has no id to compare.
    stands_in = found.only_here and not ref.id.startswith(LOCAL)
    if stands_in and (not _is_known(ref.id) or gym.registry[ref.id].entry_point is env):
        assert found.make is not None
        return found.make
    if found.ref.id != ref.id:
        raise InvalidRequestError(
            f"the job plays {ref.id}, not {found.ref.id}",
            hint="leave it out: the id is registered here" if _is_known(ref.id) else "pass its class",
            field="env",
        )
    if found.make is None:
        raise UnknownEnvironmentError(
            f"the job plays {ref.id!r}, which is not registered in this process",
            hint="pass its class: env=MyEnv, or --env module:MyEnv at the command line",
            field="env",
        )
    return found.make


def installed_packs() -> list[InstalledPack]:
    """Return the packs that this process can play."""
    return [
        InstalledPack(name=pack.name, distribution=pack.distribution, version=pack.version)
        for pack in known_packs()
    ]


def _remote(token: object) -> MakeEnv:
    """Return the constructor of an environment on a server.

    The token stays here, not in the job's reference.
    """
    # Not a nested function: it must be picklable for environments in their own processes.
    return partial(_make_remote, {} if token is None else {"token": token})


def _make_remote(token: Mapping[str, Any], ref: EnvironmentRef) -> AnyEnv:
    return make_environment(ref.model_copy(update={"kwargs": {**_TAKING_TURNS, **ref.kwargs, **token}}))


def _is_known(env_id: str) -> bool:
    """Whether this process can create it: from a pack, `tinkergym.register` or `gymnasium.register`."""
    if env_id not in gym.registry:
        find_packs()
    return env_id in gym.registry


def _factory(build: Callable[..., AnyEnv]) -> MakeEnv:
    # Not a nested function: it must be picklable for environments in their own processes.
    return partial(_make, build)


def _make(build: Callable[..., AnyEnv], ref: EnvironmentRef) -> AnyEnv:
    env = built(build, ref.kwargs, field="environment")
    if not isinstance(env, gym.Env):
        raise InvalidEnvironmentError(
            f"{getattr(build, '__name__', build)} returned {type(env).__name__}, not a gymnasium.Env",
            hint="derive the class from gymnasium.Env or tinkergym.TextEnv; use register_game for a TextGame",
            field="environment",
        )
    return env
