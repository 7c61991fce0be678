"""How an environment worker creates environments: from a pack, or on an allowed server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backend.external.urls import is_remote, pinned
from tinkergym.registration.games import make_playable
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.game_table import GameTable, seated
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.schema.jobs.parts import EnvironmentRef


def environment_maker(listed: Sequence[str]) -> MakeEnv:
    """Return a function that creates the environment of a leased episode's reference.

    Args:
        listed: `ServiceConfig.environment_urls`. Checked again here: the operator may have changed it since
            the job was accepted, and a name may resolve differently by now.
    """
    # Not a nested function: it must be picklable for environments in their own processes.
    return partial(_make, tuple(listed))


def _make(listed: Sequence[str], ref: EnvironmentRef) -> AnyEnv:
    made: AnyEnv = seated(make_playable(pinned(ref, listed) if is_remote(ref) else ref))
    if isinstance(made, GameTable):
        made.only_marked_tools = True
    return made
