"""Check before a job starts whether its seats match its game, and look at the game's first observation."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from tinkergym.agent.coordinator import Standing
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.rollout.game_table import GameTable, seated
from tinkergym.rollout.table_players import check_player, offered
from tinkergym.schema.episodes import TablePlayer


def check_seats(made: Any, agents: Sequence[str], name: str) -> GameTable | None:
    """Return the game as a table, or None for an environment with one agent.

    Args:
        made: The environment or game.
        agents: The job's agents; none for an environment with one agent.
        name: Its id, for errors.

    Raises:
        InvalidRequestError: The job has a seat that the game does not have, or lacks one.
    """
    table = seated(made)
    if not isinstance(table, GameTable):
        if not agents:
            return None
        raise InvalidRequestError(
            f"{name} is an environment with one agent, so it has no seats",
            hint="leave out agents, or use a game",
            field="agents",
        )
    known = list(table.agents)
    unknown = next((agent for agent in agents if agent not in known), None)
    missing = next((agent for agent in known if agent not in agents), None)
    if unknown is None and missing is None:
        return table
    close = difflib.get_close_matches(unknown or "", known, n=1)
    what = f"has no agent {unknown!r}" if unknown is not None else f"needs a policy for agent {missing!r}"
    every = "give each of them once: agents={'ID': tg.Train()}"
    if not agents:
        every += "; or let one policy play all of them: self_play=True"
    raise InvalidRequestError(
        f"{name} {what}; its agents are {', '.join(known)}",
        hint=f"did you mean {close[0]!r}?" if close else every,
        field="agents" if unknown is None else f"agents.{unknown}",
    )


def first_standing(table: GameTable, seed: int, name: str) -> Standing:
    """Reset a game and return the state of the agent that acts first.

    Raises:
        InvalidEnvironmentError: The game is over before any agent acts.
    """
    turn = table.reset(seed=seed).turn
    if turn is None:
        raise InvalidEnvironmentError(
            f"{name} is over before any agent acts", hint=f"look at reset(seed={seed})", field="environment"
        )
    return turn


def check_players(table: GameTable, scripted: Sequence[tuple[str, str]]) -> None:
    """Refuse players that the game does not have.

    Args:
        table: The game.
        scripted: Agents with the names of their players.

    Raises:
        InvalidRequestError: The game has no such player.
    """
    for agent, name in scripted:
        check_player(table.unwrapped, agent, TablePlayer(name=name))


def game_of(made: Any, name: str) -> GameTable:
    """Return the game for self-play.

    Raises:
        InvalidRequestError: It is an environment with one agent.
    """
    table = seated(made)
    if not isinstance(table, GameTable) or len(table.agents) < 2:
        raise InvalidRequestError(
            f"{name} is an environment with one agent, which cannot play itself",
            hint="leave out self_play, or use a game",
            field="self_play",
        )
    return table


def players_offered(table: GameTable) -> list[str]:
    """Return the names of the players that a game offers."""
    return offered(table.unwrapped)
