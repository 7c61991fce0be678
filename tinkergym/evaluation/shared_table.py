"""SharedTable: a game in which scripts play some seats and policies play the others.

It keeps its own account of every seat's return and of illegal moves, whoever plays.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.games.against_opponent import TextPlayer
from tinkergym.messages import observation_text
from tinkergym.rollout.game_table import GameTable

_MOST_MOVES = 10_000
"""Moves of scripts in a row after which no policy will get a turn."""


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
    """A `GameTable` whose coordinator only sees the seats of policies."""

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
        self._rngs: dict[str, np.random.Generator] = {}
        for script in {script for script in self._scripts.values() if isinstance(script, str)}:
            check = getattr(self.unwrapped, "check_opponent", None)
            if check is None:
                raise InvalidRequestError(f"this game has no player {script!r}", field="players")
            check(script)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that policies play."""
        return tuple(agent for agent in super().agents if agent not in self._scripts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Position:
        """Begin a game and its account, and play up to the first turn of a policy."""
        self._account = self._accounts[seed or 0] = GameAccount(
            returns=dict.fromkeys(self._game.possible_agents, 0.0)
        )
        # Each seat has its own stream: swapping seats must not change the game's chance events.
        self._rngs = {
            agent: np.random.default_rng([seed or 0, zlib.crc32(agent.encode())]) for agent in self._scripts
        }
        for agent, script in self._scripts.items():
            begin = getattr(script, "reset", None)
            if begin is not None:
                begin(seed=int(self._rngs[agent].integers(2**31)))
        return super().reset(seed=seed, options=options)

    def _act(self, action: str) -> None:
        super()._act(action)
        self._account.moves += 1
        for agent, reward in self._game.rewards.items():
            self._account.returns[agent] += float(reward)

    def _position(self) -> Position:
        ended: list[Standing] = []
        for _ in range(_MOST_MOVES):
            position = super()._position()
            for standing in position.ended:
                self._note_end(standing)
            ended += [standing for standing in position.ended if standing.agent not in self._scripts]
            turn = position.turn
            self._account.ended = turn is None
            if turn is None or turn.agent not in self._scripts:
                owed = {agent: paid for agent, paid in position.owed.items() if agent not in self._scripts}
                return Position(agents=self.agents, ended=tuple(ended), turn=turn, owed=owed)
            self._act(self._scripted(turn))
        raise InvalidEnvironmentError(
            f"the game went on for {_MOST_MOVES} moves of scripts without a turn for a policy",
            hint="make sure that the game ends",
            field="environment",
        )

    def _note_end(self, standing: Standing) -> None:
        metrics = standing.info.get("metrics") if isinstance(standing.info, Mapping) else None
        if isinstance(metrics, Mapping) and metrics.get("illegal_move"):
            self._account.forfeits.add(standing.agent)

    def _scripted(self, turn: Standing) -> str:
        script = self._scripts[turn.agent]
        if isinstance(script, str):
            return str(self.unwrapped.scripted_action(turn.agent, script, self._rngs[turn.agent]))
        return script.act(observation_text(turn.observation))
