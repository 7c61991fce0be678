"""Which tasks an evaluation plays, and how many of them the policy was trained on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.registration.arguments import built
from tinkergym.registration.environments import make_environment
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.executors import made
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.tasks.overlap import Overlap, overlap_of


@dataclass(frozen=True, slots=True)
class Inspected:
    """What an environment tells before it is played."""

    is_game: bool = False
    """Whether it is a game against an opponent."""
    overlap: Overlap | None = None
    """Its tasks; None if it has none."""


def inspect_environment(
    make_env: MakeEnv,
    reference: EnvironmentRef,
    trained_in: Sequence[EnvironmentRef] = (),
    source: object = None,
) -> Inspected:
    """Create the environment once before the episodes: if this fails, none of them can be played.

    Args:
        make_env: Creates it.
        reference: What it is called.
        trained_in: The environments in which the policy was trained.
        source: A class or function of the script, which those of its name were made with, too.

    Raises:
        UnknownEnvironmentError: The id is not registered in this process.
        InvalidEnvironmentError: Its constructor fails.
    """
    try:
        env = made(make_env, reference)
    except ServiceUnavailableError:
        return Inspected()  # Its server is full at the moment; episodes wait for a place.
    with ExitStack() as stack:
        stack.enter_context(closing(env))
        trained: list[AnyEnv] = []
        for one in trained_in:
            of_script = callable(source) and one.id == reference.id
            make = partial(_built, source) if of_script else make_environment
            with contextlib.suppress(TinkerGymError):
                trained.append(stack.enter_context(closing(made(make, one))))
        # What `AgainstOpponent` plays; unknown behind a server.
        game = getattr(env.unwrapped, "aec_env", None)
        known = trained if len(trained) == len(trained_in) else []
        return Inspected(len(getattr(game, "possible_agents", ())) > 1, overlap_of(env, known))


def _built(source: Any, ref: EnvironmentRef) -> AnyEnv:
    env: AnyEnv = built(source, ref.kwargs, field="env_kwargs")
    return env
