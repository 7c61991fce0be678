"""Verbalize: a classical environment becomes a text environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text
from tinkergym.wrappers.wording import Wording, load_wording

_QUOTED_CHARACTERS = 40

StepReturn = tuple[str, float, bool, bool, dict[str, Any]]


class Verbalize(gym.Wrapper[str, str, Any, Any], RecordConstructorArgs):
    """Convert observations to text and parse actions from text; rewards and endings stay unchanged.

    For the same seed and actions the inner environment plays exactly as without the wrapper, which does not
    use its generator.

    Example:
        >>> env = Verbalize(gym.make("MountainCar-v0"), action_names=["left", "none", "right"])
        >>> env.reset(seed=0)
        ('-0.473 0.000', {})
        >>> env.step("left")
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        wording: str | None = None,
        action_names: Sequence[str] | None = None,
        decimals: int = 3,
        on_illegal: str = "retry:2",
        lose_reward: float = -1.0,
        instructions: bool = True,
    ) -> None:
        """Wrap an environment whose spaces are Discrete, Box, MultiDiscrete, MultiBinary, Tuple or Dict.

        Args:
            env: The environment.
            wording: `module:Class`, a subclass of `Wording`; by default plain numbers.
            action_names: Names of the actions of a Discrete action space, in its order.
            decimals: Digits after the point.
            on_illegal: How an action that cannot be parsed is handled. `lose` ends the episode with
                `lose_reward`; `random` takes a random action instead; `retry:N` explains the format and lets
                the policy try again, up to N times in a row, and then it loses.
            lose_reward: The reward when illegal actions end an episode. It should be no better than the
                environment's worst return, or policies learn to end episodes this way.
            instructions: Put the rules and the actions into the system prompt.

        Raises:
            InvalidEnvironmentError: One of the spaces is not supported.
            InvalidRequestError: A setting is invalid; see `field`.
        """
        names = list(action_names) if action_names is not None else None
        RecordConstructorArgs.__init__(
            self,
            wording=wording,
            action_names=names,
            decimals=decimals,
            on_illegal=on_illegal,
            lose_reward=lose_reward,
            instructions=instructions,
        )
        super().__init__(env)
        if not 0 <= decimals <= 15:
            raise InvalidRequestError(f"must be from 0 to 15, not {decimals!r}", field="decimals")
        self._retries = _retries(on_illegal)
        self._lose_reward = float(lose_reward)
        kind = load_wording(wording) if wording else Wording
        self.wording = kind(env, names=names, decimals=decimals)
        self.observation_space, self.action_space = Text(), Text()
        self.metadata = {"turns": "multi", "data": "free", **env.metadata}
        if instructions:
            self.metadata["system_prompt"] = self.wording.system_prompt
        # A copy with our own generator: the environment's own must not be used by the wrapper.
        self._choices = copy.deepcopy(env.action_space)
        self._misses = 0
        self._playing = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode of the inner environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._choices.seed(seed)
        self._misses, self._playing = 0, True
        return self.wording.opening(observation, info), plain(info)

    def step(self, action: str) -> StepReturn:
        """Parse the action and take it, or apply `on_illegal`.

        `info["metrics"]["illegal_moves"]` is 1 if the text was not an action, else 0.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        value = self.wording.action(action)
        illegal = value is None
        if value is None:
            if self._retries is not None:
                return self._missed(action)
            value = self._choices.sample()
        self._misses = 0
        observation, reward, terminated, truncated, info = self.env.step(value)
        self._playing = not (terminated or truncated)
        words = self.wording.observation(observation, info)
        return words, float(reward), bool(terminated), bool(truncated), _counted(plain(info), illegal)

    def legal_actions(self) -> list[str] | None:
        """Return all possible actions; None if they cannot be listed."""
        return self.wording.legal_actions()

    def gold_action(self) -> str | None:
        """Return the best action; None if the wording does not know it."""
        return self.wording.gold_action()

    def _missed(self, action: str) -> StepReturn:
        assert self._retries is not None
        self._misses += 1
        what = f"{action[:_QUOTED_CHARACTERS]!a} is not an action."
        if self._misses <= self._retries:
            return f"{what} {self.wording.how_to_answer}", 0.0, False, False, _counted({}, True)
        self._playing = False
        return f"{what} The episode ends.", self._lose_reward, True, False, _counted({}, True)


def plain(value: Any) -> Any:
    """Return a copy with numpy's arrays and numbers as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return value


def _counted(info: dict[str, Any], illegal: bool) -> dict[str, Any]:
    return {**info, "metrics": {**info.get("metrics", {}), "illegal_moves": float(illegal)}}


def _retries(on_illegal: str) -> int | None:
    """Return how often the policy may try again; None for a random action."""
    rule, _, count = on_illegal.partition(":")
    if rule == "retry" and count.isascii() and count.isdigit() and len(count) < 4:
        return int(count)
    if on_illegal in ("lose", "random"):
        return 0 if on_illegal == "lose" else None
    raise InvalidRequestError(
        f"{on_illegal!r} is not a rule for illegal actions",
        hint="use lose, random or retry:N, such as retry:2",
        field="on_illegal",
    )
