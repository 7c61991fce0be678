"""SharedTable: a game in which scripts play some seats and policies play the others.

It counts every seat's return and illegal moves, for scripts and policies alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.errors import InvalidRequestError
from tinkergym.games.against_opponent import TextPlayer
from tinkergym.rollout.game_table import GameTable
from tinkergym.rollout.table_players import ReadingPlayer, ScriptedPlayer, SeatedPlayer, check_player
from tinkergym.schema.episodes import TablePlayer


@dataclass(slots=True)
class GameAccount:
    """The account of one game, by agent."""

    returns: dict[str, float] = field(default_factory=dict)
    forfeits: set[str] = field(default_factory=set)
    """The agents that lost by an illegal move."""
    moves: int = 0
    ended: bool = False
    """Whether the game ended by its own rules."""


class SharedTable(GameTable):
    """A `GameTable` with the same players at it in every game."""

    def __init__(
        self, game: Any, scripts: Mapping[str, str | TextPlayer], accounts: dict[int, GameAccount]
    ) -> None:
        """Set up the table.

        Args:
            game: A PettingZoo environment, as for `GameTable`.
            scripts: For each scripted agent, a player of the game by name, or an object with
                `act(observation) -> str`.
            accounts: Receives the account of each game, by its seed.

        Raises:
            InvalidRequestError: The game has no such player.
        """
        super().__init__(game)
        self._scripts, self._accounts = dict(scripts), accounts
        self._account = GameAccount()
        for agent, script in self._scripts.items():
            if not isinstance(script, str):
                continue
            try:
                check_player(self.unwrapped, agent, TablePlayer(name=script))
            except InvalidRequestError as error:
                error.field = "players"
                raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Position:
        """Begin a game and its account, and play up to the first turn of a policy."""
        self._account = self._accounts[seed or 0] = GameAccount(
            returns=dict.fromkeys(self._game.possible_agents, 0.0)
        )
        return super().reset(seed=seed, options=options)

    def _seated(
        self, players: Mapping[str, tuple[TablePlayer, int]], seed: int | None
    ) -> dict[str, tuple[TablePlayer, SeatedPlayer]]:
        found = super()._seated(players, seed)
        for agent, script in self._scripts.items():
            # A stream of its own for each seat: swapping seats must not change what chance does to the game.
            rng = np.random.default_rng([seed or 0, zlib.crc32(agent.encode())])
            if isinstance(script, str):
                found[agent] = TablePlayer(name=script), ScriptedPlayer(self.unwrapped, script, rng)
            else:
                found[agent] = TablePlayer(name=type(script).__name__), ReadingPlayer(script, rng)
        return found

    def _act(self, action: str) -> None:
        super()._act(action)
        self._account.moves += 1
        for agent, reward in self._game.rewards.items():
            self._account.returns[agent] += float(reward)

    def _position(self) -> Position:
        position = super()._position()
        self._account.ended = position.turn is None
        return position

    def _note_end(self, standing: Standing) -> None:
        metrics = standing.info.get("metrics") if isinstance(standing.info, Mapping) else None
        if isinstance(metrics, Mapping) and metrics.get("illegal_move"):
            self._account.forfeits.add(standing.agent)
