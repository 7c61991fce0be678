"""GameTable: a PettingZoo game with the two calls of an environment that hosts know, `reset` and `step`.

So a game can run wherever an environment can: in a thread, in its own process, next to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.games.parallel import with_turns
from tinkergym.rollout.environment_host import system_prompt_of
from tinkergym.rollout.table_players import SeatedPlayer, acting_failed, seat_player
from tinkergym.rollout.table_tools import SeatToolbox
from tinkergym.schema.episodes import TablePlayer
from tinkergym.schema.seat_tools import SeatTools

PLAYERS = "players at the table"
"""Among the options of `GameTable.reset`."""
TOOLS = "tools at the table"
"""Likewise."""

_MOST_MOVES = 10_000
"""Of players at the table in a row: where no policy is asked for so long, none will be."""


def seated(made: Any) -> Any:
    """Return a game as a table, and anything else unchanged.

    Args:
        made: A Gymnasium environment, or a PettingZoo game, AEC or parallel. A game behind a server
            looks like an environment and offers its table itself.
    """
    as_table = getattr(getattr(made, "unwrapped", made), "as_table", None)
    table = as_table() if callable(as_table) else None
    if table is not None:
        return table
    is_game = not isinstance(made, gym.Env) and hasattr(made, "possible_agents")
    return GameTable(made) if is_game else made


class GameTable:
    """One game. An agent's observations and rewards are those of `AECEnv.last` at its turn."""

    only_marked_tools = False
    """See `SeatToolbox`."""

    def __init__(self, game: Any) -> None:
        """Set up the table.

        Args:
            game: A PettingZoo environment whose observations are text or mappings with text under `text`.
                A parallel one is converted: its agents act one after the other without seeing each other's
                actions.
        """
        self._game = game = with_turns(game)
        self._owed: dict[str, Any] = {}
        self._players: dict[str, tuple[TablePlayer, SeatedPlayer]] = {}
        """Who plays the agents that no policy plays."""
        self._toolboxes: dict[str, SeatToolbox] = {}
        """The toolboxes of agents with tools."""
        self.metadata: dict[str, Any] = game.metadata

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents of the game."""
        return tuple(self._game.possible_agents)

    @property
    def unwrapped(self) -> Any:
        """The game itself."""
        return self._game.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Position:
        """Begin a game and return whose turn it is.

        Args:
            seed: The game's seed.
            options: The game's options. The entry `PLAYERS` is for the table: by agent, who plays it here and
                with which seed; positions then only describe the other agents. The entry `TOOLS` lists, by
                agent, the tools that it may call before it moves.
        """
        tools: Mapping[str, SeatTools] = (options or {}).get(TOOLS, {})
        if options and TOOLS in options:
            options = {name: value for name, value in options.items() if name != TOOLS} or None
        for agent in self._toolboxes.keys() - tools.keys():
            self._toolboxes.pop(agent).close()
        self._toolboxes = {agent: self._toolbox(agent, settings) for agent, settings in tools.items()}
        players: Mapping[str, tuple[TablePlayer, int]] = {}
        if options and PLAYERS in options:
            players = options[PLAYERS]
            options = {name: value for name, value in options.items() if name != PLAYERS} or None
        self._players = self._seated(players, seed)
        self._game.reset(seed=seed, options=options)
        self._owed = {}
        position = self._position()
        return replace(position, prompts=self._prompts()) if self._toolboxes else position

    def step(self, action: str) -> Position:
        """Let the agent whose turn it is act; its tool calls are not moves."""
        agent = self._game.agent_selection
        standing = self._toolboxes[agent].called(agent, action) if agent in self._toolboxes else None
        if standing is not None:
            owed = {other: paid for other, paid in self._owed.items() if other != agent}
            return self._seen([], standing, owed)
        self._act(action)
        return self._position()

    def close(self) -> None:
        """Close the game, and the tools."""
        for toolbox in self._toolboxes.values():
            toolbox.close()
        self._game.close()

    def _toolbox(self, agent: str, settings: SeatTools) -> SeatToolbox:
        """Return the tools of an agent; those of the previous game, if they are the same."""
        known = self._toolboxes.get(agent)
        if known is None or known.settings != settings:
            if known is not None:
                known.close()
            known = SeatToolbox(settings, only_marked=self.only_marked_tools)
        known.begin()
        return known

    def _prompts(self) -> dict[str, str]:
        own = system_prompt_of(self._game)
        return {agent: toolbox.prompt(own) for agent, toolbox in self._toolboxes.items()}

    def _seated(
        self, players: Mapping[str, tuple[TablePlayer, int]], seed: int | None
    ) -> dict[str, tuple[TablePlayer, SeatedPlayer]]:
        """Seat the players of a game of this seed."""
        del seed
        return {
            agent: (player, seat_player(self.unwrapped, agent, player, own_seed))
            for agent, (player, own_seed) in players.items()
        }

    def _act(self, action: str) -> None:
        self._game.step(action)
        for agent, reward in self._game.rewards.items():
            self._owed[agent] = self._owed.get(agent, 0.0) + reward

    def _play_here(self, agent: str, observation: Any) -> None:
        """Let a player of this table act."""
        player, seated_player = self._players[agent]
        try:
            action = seated_player.act(agent, observation)
        except Exception as error:  # a game's own player is foreign code
            raise acting_failed(agent, player, error) from error
        self._act(action)

    def _note_end(self, standing: Standing) -> None:
        """Note that the game is over for an agent; for tables that count returns."""

    def _position(self) -> Position:
        game, moves_here = self._game, 0
        ended: list[Standing] = []
        while game.agents:
            standing = Standing.in_game(game)
            agent = standing.agent
            # Its standing has what it earned until now.
            self._owed[agent] = 0.0
            over = bool(standing.terminated or standing.truncated)
            if agent in self._players and not over:
                moves_here += 1
                if moves_here > _MOST_MOVES:
                    raise InvalidEnvironmentError(
                        f"the game went on for {_MOST_MOVES} moves without a turn for a policy",
                        hint="let the game end",
                        field="environment",
                    )
                self._play_here(agent, standing.observation)
                continue
            if not over:
                owed = {other: paid for other, paid in self._owed.items() if other != agent}
                return self._seen(ended, standing, owed)
            self._note_end(standing)
            if agent not in self._players:
                ended.append(standing)
            # PettingZoo gives an agent whose game is over one more turn, with None as the action.
            left = len(game.agents)
            game.step(None)
            if len(game.agents) >= left:
                raise InvalidEnvironmentError(
                    f"agent {agent!r} has ended and passed None, but is still in the game's agents",
                    hint="call _was_dead_step(action) in step, as PettingZoo's AECEnv does",
                    field="environment",
                )
        return self._seen(ended, None, dict(self._owed))

    def _seen(self, ended: list[Standing], turn: Standing | None, owed: dict[str, Any]) -> Position:
        agents = tuple(agent for agent in self.agents if agent not in self._players)
        owed = {agent: paid for agent, paid in owed.items() if agent not in self._players}
        return Position(agents=agents, ended=tuple(ended), turn=turn, owed=owed)
