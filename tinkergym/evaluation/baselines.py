"""Policies without a model, for checks and baselines: random words, legal actions, gold actions.

They see the same observations as a model and play directly in the environment, without tokens.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.messages import observation_text
from tinkergym.trajectory.trajectory import StopReason, Trajectory, Turn
from tinkergym.user_code.returned_values import finite_number

MOST_TURNS = 200
"""By default an episode is cut off after this many turns."""

_POLICY_STREAM = 1
"""Separates a policy's random numbers from the environment's, which has the same seed."""
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 +-?!.,éß中😀"


class TextPolicy(Protocol):
    """Acts on observations. May also have `reset(seed)`, which is then called before each episode."""

    def act(self, observation: Any) -> str:
        """Return the action."""
        ...


class RandomTextPolicy:
    """Acts with words of the observation, numbers and nonsense, whatever the environment is about."""

    def __init__(self, seed: int = 0) -> None:
        """Draw random numbers from this seed."""
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Begin an episode. The same seed gives the same actions for the same observations."""
        self._rng = np.random.default_rng([seed, _POLICY_STREAM])

    def act(self, observation: Any) -> str:
        """Return a word of the observation (8 of 10 times), a number, or a few random characters."""
        words = observation_text(observation).split()
        kind = int(self._rng.integers(10))
        if kind < 8 and words:
            return words[int(self._rng.integers(len(words)))]
        if kind == 8:
            return str(self._rng.integers(200))
        return "".join(_CHARACTERS[int(i)] for i in self._rng.integers(len(_CHARACTERS), size=5))


class LegalPolicy:
    """Plays one of the environment's `legal_actions()`, all with equal probability."""

    def __init__(self, env: gym.Env[Any, Any], seed: int = 0) -> None:
        """Play in this environment.

        Raises:
            InvalidRequestError: It cannot list its legal actions.
        """
        self._legal_actions: Callable[[], list[str] | None] = _offered(env, "legal_actions", "legal")
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Begin an episode. The same seed gives the same choices among the same actions."""
        self._rng = np.random.default_rng([seed, _POLICY_STREAM])

    def act(self, observation: Any) -> str:
        """Return a legal action.

        Raises:
            InvalidRequestError: There is none, or none is known in this state.
        """
        del observation
        actions = self._legal_actions()
        if not actions:
            raise InvalidRequestError("legal_actions() returned no action", field="policy")
        return actions[int(self._rng.integers(len(actions)))]


class GoldPolicy:
    """Plays the environment's `gold_action()`, the best action in this state."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Play in this environment.

        Raises:
            InvalidRequestError: It has no gold actions.
        """
        self._gold_action: Callable[[], str | None] = _offered(env, "gold_action", "gold")

    def act(self, observation: Any) -> str:
        """Return the gold action.

        Raises:
            InvalidRequestError: None is known in this state.
        """
        del observation
        action = self._gold_action()
        if action is None:
            raise InvalidRequestError("gold_action() returned no action", field="policy")
        return action


POLICIES: dict[str, Callable[[gym.Env[Any, Any]], TextPolicy]] = {
    "random": lambda env: RandomTextPolicy(),
    "legal": LegalPolicy,
    "gold": GoldPolicy,
}
"""Policies by their name on the command line."""


def play_episode(
    env: gym.Env[Any, Any],
    policy: TextPolicy,
    *,
    seed: int,
    policy_seed: int | None = None,
    task_index: int | None = None,
    most_turns: int = MOST_TURNS,
) -> Trajectory:
    """Play one episode and return its record, without tokens.

    An exception of the environment becomes the outcome `environment_error` with the traceback.

    Args:
        env: The environment.
        policy: The policy.
        seed: The seed for `env.reset`.
        policy_seed: The seed for the policy; None uses the episode's.
        task_index: For `reset(options=...)`.
        most_turns: The episode is cut off after this many turns.

    Raises:
        InvalidRequestError: The policy cannot act.
    """
    begin = getattr(policy, "reset", None)
    if begin is not None:
        begin(seed if policy_seed is None else policy_seed)
    options = None if task_index is None else {"task_index": task_index}
    turns: list[Turn] = []
    final, reason, error = "", StopReason.TURN_LIMIT, ""
    terminated = truncated = False
    try:
        observation, _ = env.reset(seed=seed, options=options)
        while len(turns) < most_turns and not (terminated or truncated):
            action = policy.act(observation)
            shown = observation_text(observation)
            observation, reward, terminated, truncated, info = env.step(action)
            try:
                paid = finite_number(reward)
            except ValueError as wrong:
                reason, error = StopReason.INVALID_REWARD, f"step returned the reward {wrong}"
                break
            turns.append(_turn(shown, action, paid, info))
            final = _last_shown(observation) if terminated or truncated else observation_text(observation)
    except InvalidRequestError:
        raise
    except InvalidRewardError as caught:
        reason, error = StopReason.INVALID_REWARD, str(caught)
    # User code: its failure becomes an outcome with a name.
    except Exception:
        reason, error = StopReason.ENVIRONMENT_ERROR, traceback.format_exc()
    if not error and (terminated or truncated):
        reason = StopReason.TERMINATED if terminated else StopReason.TRUNCATED
    return Trajectory(
        segments=[],
        turns=turns,
        terminated=reason is StopReason.TERMINATED,
        truncated=reason is not StopReason.TERMINATED,
        stop_reason=reason,
        error=error,
        seed=seed,
        task_index=task_index,
        final_observation=final,
    )


def _last_shown(observation: Any) -> str:
    # Many environments show nothing at the end, and the last observation is not needed.
    return observation_text(observation) if isinstance(observation, str | Mapping | list) else ""


def _turn(observation: str, action: str, reward: float, info: dict[str, Any]) -> Turn:
    metrics = info.get("metrics") or {}
    return Turn(
        segment=0,
        start=0,
        end=0,
        policy_version=0,
        finish_reason="stop",
        observation=observation,
        action=action,
        reward=reward,
        metrics={str(name): float(value) for name, value in metrics.items() if math.isfinite(value)},
    )


def _offered(env: gym.Env[Any, Any], method: str, policy: str) -> Callable[[], Any]:
    # Anywhere in the stack: a wrapper that changes how actions are parsed can provide its own.
    if not env.has_wrapper_attr(method):
        raise InvalidRequestError(
            f"{type(env.unwrapped).__name__} has no {method}(), which the policy {policy!r} needs",
            hint=f"define {method}() in the environment, or choose another policy",
            field="policy",
        )
    found: Callable[[], Any] = env.get_wrapper_attr(method)
    return found
