"""Whether a job's seats are those of its game, and what the game shows first: looked at before it starts."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from tinkergym.agent.coordinator import Standing
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.rollout.game_table import GameTable, seated


def check_seats(made: Any, agents: Sequence[str], name: str) -> GameTable | None:
    """Return the game as a table, or None for an environment with one agent.

    Args:
        made: The environment or game.
        agents: Of the job; none for an environment with one agent.
        name: Its id, for errors.

    Raises:
        InvalidRequestError: The job has a seat that the game does not have, or lacks one.
    """
    table = seated(made)
    if not isinstance(table, GameTable):
        if not agents:
            return None
        raise InvalidRequestError(
            f"{name} is an environment with one agent, which has no seats",
            hint="leave agents out, or name a game",
            field="agents",
        )
    known = list(table.agents)
    unknown = next((agent for agent in agents if agent not in known), None)
    missing = next((agent for agent in known if agent not in agents), None)
    if unknown is None and missing is None:
        return table
    close = difflib.get_close_matches(unknown or "", known, n=1)
    what = f"has no agent {unknown!r}" if unknown is not None else f"needs a policy for agent {missing!r}"
    raise InvalidRequestError(
        f"{name} {what}; its agents are {', '.join(known)}",
        hint=f"did you mean {close[0]!r}?" if close else "give each of them once: agents={'ID': tg.Train()}",
        field="agents" if unknown is None else f"agents.{unknown}",
    )


def first_standing(table: GameTable, seed: int, name: str) -> Standing:
    """Reset a game and return how the agent stands that acts first.

    Raises:
        InvalidEnvironmentError: The game is over before anybody acts.
    """
    turn = table.reset(seed=seed).turn
    if turn is None:
        raise InvalidEnvironmentError(
            f"{name} is over before anybody acts", hint=f"look at reset(seed={seed})", field="environment"
        )
    return turn
