"""IllegalAction: how an action that an environment does not allow is handled."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.games.illegal import IllegalPolicy, quoted_action, read_legal
from tinkergym.wrappers.observed_text import replaced_text, require_text_observations, with_text


class IllegalAction(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Let an illegal action lose, be replaced by a random legal one, or be tried again.

    For environments with `legal_actions()`; if they return None, the action passes unchanged.
    `info["metrics"]["illegal_moves"]` is 1 in a step whose action was illegal, else 0. A `TextGame` has its
    own setting `on_illegal`, which also applies to its opponents.

    Put it directly around the environment, so that it sees the same action as the environment.

    Example:
        >>> env = IllegalAction(tg.make("board/TicTacToeVs-v0"), on_illegal="retry:3")
    """

    def __init__(self, env: gym.Env[Any, Any], on_illegal: str = "retry:3", reward: float = -1.0) -> None:
        """Set the rule.

        Args:
            env: The environment; `legal_actions()` of the innermost one is called before each step.
            on_illegal: `lose`, `random` or `retry:N` (N more tries per turn).
            reward: The reward for losing by an illegal action.

        Raises:
            InvalidRequestError: It is not such a rule, or the environment cannot list its legal actions.
        """
        RecordConstructorArgs.__init__(self, on_illegal=on_illegal, reward=reward)
        super().__init__(env)
        self._policy = IllegalPolicy.parse(on_illegal)
        offered: Callable[[], list[str] | None] | None = getattr(env.unwrapped, "legal_actions", None)
        if offered is None:
            raise InvalidRequestError(
                f"{type(env.unwrapped).__name__} does not list its legal actions",
                hint="define legal_actions(), which returns a list of strings, or None if unknown",
                field="environment",
            )
        require_text_observations(env, "on_illegal")
        self._legal_actions = offered
        self._reward = float(reward)
        self._rng: np.random.Generator | None = None
        self._lost = False
        self._tries = 0
        self._last: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None or self._rng is None:
            # Its own stream, so that the environment draws the same numbers with and without this wrapper.
            self._rng = np.random.default_rng(None if seed is None else zlib.crc32(b"illegal %d" % seed))
        self._lost, self._tries, self._last = False, 0, observation
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with a legal action, or apply the rule.

        Raises:
            EpisodeProtocolError: The episode was lost by an illegal action.
        """
        if self._lost:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        legal = self._legal_actions()
        if not legal or read_legal(action, legal) is not None:
            return self._stepped(action, 0.0)
        reason = f"Illegal move: {quoted_action(action)}."
        if self._policy.kind == "random":
            assert self._rng is not None
            chosen = legal[int(self._rng.integers(len(legal)))]
            return self._stepped(chosen, 1.0, note=f"{reason} {chosen} was played instead.")
        metrics = {"illegal_moves": 1.0}
        if self._policy.kind == "retry" and self._tries < self._policy.retries:
            self._tries += 1
            last = ", for the last time" if self._tries == self._policy.retries else ""
            told = replaced_text(self._last, f"{reason} Try again{last}.")
            return told, 0.0, False, False, {"metrics": metrics}
        self._lost = True
        told = replaced_text(self._last, f"{reason} You lose.")
        return told, self._reward, True, False, {"metrics": {**metrics, "illegal_move": 1.0}}

    def _stepped(
        self, action: str, illegal: float, *, note: str = ""
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._tries, self._last = 0, observation
        if note:
            observation = with_text(observation, above=note)
        metrics = {**info.get("metrics", {}), "illegal_moves": illegal}
        return observation, reward, terminated, truncated, {**info, "metrics": metrics}
