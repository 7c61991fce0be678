"""GameTable: a PettingZoo game behind the two calls of an environment that hosts know, `reset` and `step`.

So a game lives wherever an environment can: in a thread, in a process of its own, next to others.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.errors import InvalidEnvironmentError


def seated(made: Any) -> Any:
    """Return a game as a table, and anything else as it is.

    Args:
        made: A Gymnasium environment, or a PettingZoo game, AEC or parallel.
    """
    is_game = not isinstance(made, gym.Env) and hasattr(made, "possible_agents")
    return GameTable(made) if is_game else made


class GameTable:
    """One game. What an agent is shown and paid is what `AECEnv.last` says when its turn comes."""

    def __init__(self, game: Any) -> None:
        """Sit around the game.

        Args:
            game: A PettingZoo environment whose observations are text or mappings with text under `text`.
                A parallel one is converted: its agents act one after the other and see only what was before.
        """
        if not hasattr(game, "agent_iter"):
            from pettingzoo.utils.conversions import parallel_to_aec

            game = parallel_to_aec(game)
        self._game = game
        self._owed: dict[str, Any] = {}
        self.metadata: dict[str, Any] = game.metadata

    @property
    def agents(self) -> tuple[str, ...]:
        """All that the game can have."""
        return tuple(self._game.possible_agents)

    @property
    def unwrapped(self) -> Any:
        """The game itself."""
        return self._game.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Position:
        """Begin a game and return whose turn it is."""
        self._game.reset(seed=seed, options=options)
        self._owed = {}
        return self._position()

    def step(self, action: str) -> Position:
        """Let the agent act whose turn it is."""
        self._act(action)
        return self._position()

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def _act(self, action: str) -> None:
        self._game.step(action)
        for agent, reward in self._game.rewards.items():
            self._owed[agent] = self._owed.get(agent, 0.0) + reward

    def _position(self) -> Position:
        game = self._game
        ended: list[Standing] = []
        while game.agents:
            agent = game.agent_selection
            observation, reward, terminated, truncated, info = game.last()
            self._owed[agent] = 0.0
            standing = Standing(
                agent=agent,
                observation=observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
            )
            if not (terminated or truncated):
                owed = {other: paid for other, paid in self._owed.items() if other != agent}
                return self._seen(ended, standing, owed)
            ended.append(standing)
            # PettingZoo asks an agent whose game is over once more, for None.
            left = len(game.agents)
            game.step(None)
            if len(game.agents) >= left:
                raise InvalidEnvironmentError(
                    f"agent {agent!r} is over and answered None, but stays in the game's agents",
                    hint="call _was_dead_step(action) in step, as PettingZoo's AECEnv does",
                    field="environment",
                )
        return self._seen(ended, None, dict(self._owed))

    def _seen(self, ended: list[Standing], turn: Standing | None, owed: dict[str, Any]) -> Position:
        return Position(agents=self.agents, ended=tuple(ended), turn=turn, owed=owed)
