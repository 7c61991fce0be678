"""TurnLimit: limits the turns of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers.observed_text import require_text_observations, with_text


class TurnLimit(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Truncate an episode after this many turns, and optionally announce how many are left.

    The limit truncates; it does not end the task: what the policy would still have earned is unknown, and the
    learner is told so. A task that must be solved in a number of turns should terminate by its own rules.

    Example:
        >>> env = TurnLimit(tg.make("board/GomokuVs-v0"), turns=6, announce=True)
    """

    def __init__(self, env: gym.Env[Any, Any], turns: int, announce: bool = False) -> None:
        """Set the limit.

        Args:
            env: The environment.
            turns: Most steps of an episode, 1 or more.
            announce: Add a line to each observation with the number of turns left.

        Raises:
            InvalidRequestError: A setting is out of range, or there is no text to add a line to.
        """
        RecordConstructorArgs.__init__(self, turns=turns, announce=announce)
        super().__init__(env)
        if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
            raise InvalidRequestError(f"must be a number from 1, not {turns!r}", field="turns")
        if announce:
            require_text_observations(env, "announce")
        self._turns, self._announce = turns, announce
        self._taken = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with all its turns."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._taken = 0
        return self._shown(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step. The last turn truncates unless the task ended with it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._taken += 1
        if not terminated and self._taken >= self._turns:
            truncated = True
        if not (terminated or truncated):
            observation = self._shown(observation)
        return observation, reward, terminated, truncated, info

    def _shown(self, observation: Any) -> Any:
        if not self._announce:
            return observation
        left = self._turns - self._taken
        return with_text(observation, below=f"({left} turn{'s' if left != 1 else ''} left)")
