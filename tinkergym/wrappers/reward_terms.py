"""RewardTerms: more terms in the reward, or next to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.rubrics.rubric import PREFIX, Term, finite
from tinkergym.tools.definition import named

OWN = f"{PREFIX}environment"
"""The metric that keeps the environment's own reward."""


def action_characters(action: object) -> float:
    """How long the action is."""
    return float(len(action)) if isinstance(action, str) else 0.0


def step() -> float:
    """1 for each step: with a negative weight, a price on time."""
    return 1.0


BUILT_IN: dict[str, Callable[..., Any]] = {"action_characters": action_characters, "step": step}
"""Terms that need only a weight."""


class RewardTerms(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Add weighted terms to each step's reward, and log them.

    A term is a function that names what it wants to know of the step: `observation`, `action`,
    `next_observation`, `reward`, `terminated`, `truncated`, `info`. With weight 0 it is only logged. The
    environment's own reward counts in full and stays visible as `reward/environment`; the terms stand beside
    it in `info["metrics"]` as `reward/<term>`, unweighted.

    A term that raises or gives no finite number makes the reward invalid: the episode ends as
    `invalid_reward`, and nothing is learned from it.

    Example:
        >>> env = RewardTerms(env, weights={"action_characters": -0.001})
        >>> env = RewardTerms(env, terms={"polite": "my_pack.manners:polite"}, weights={"polite": 0.1})
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        terms: Mapping[str, str | Callable[..., Any]] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: Any environment.
            terms: Functions by the name of their term, as `module:name` or as they are; only the first kind
                can be written down in a spec. `action_characters` and `step` are there without.
            weights: By term; a term without one is only logged.

        Raises:
            InvalidRequestError: A weight has no term, or a function cannot be found.
        """
        terms, weights = dict(terms or {}), dict(weights or {})
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, terms=terms, weights=weights)
        super().__init__(env)
        functions = {name: BUILT_IN[name] for name in weights if name in BUILT_IN} | {
            name: named(source) if isinstance(source, str) else source for name, source in terms.items()
        }
        unknown = sorted(set(weights) - set(functions))
        if unknown or not functions:
            have = ", ".join([*functions, *sorted(set(BUILT_IN) - set(functions))])
            problem = f"{unknown[0]} is no term" if unknown else "there are no terms"
            raise InvalidRequestError(
                problem, hint=f"pass its function in terms; there are: {have}", field="weights"
            )
        self._terms = [Term(name, function, weights.get(name, 0.0)) for name, function in functions.items()]
        if any(term.name == OWN.removeprefix(PREFIX) for term in self._terms):
            raise InvalidRequestError("the name environment is taken", field="terms")
        self._observation: Any = None
        self._playing = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation, self._playing = observation, True
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the step and add the terms.

        Raises:
            InvalidRewardError: A term cannot be had, or the environment's reward is no finite number.
            EpisodeProtocolError: No episode is running.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        before = self._observation
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._observation, self._playing = observation, not (terminated or truncated)
        facts = {
            "observation": before,
            "action": action,
            "next_observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        total = finite(reward, OWN.removeprefix(PREFIX))
        # Of two such wrappers the inner one knows the environment's own reward.
        metrics = {OWN: total, **(info.get("metrics") or {})}
        for term in self._terms:
            value = term.value(facts)
            metrics[PREFIX + term.name] = value
            total += term.weight * value
        return observation, finite(total, "the sum"), terminated, truncated, {**info, "metrics": metrics}
