"""RewardTerms: more terms in the reward, or logged next to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.rubrics.rubric import PREFIX, Term, finite
from tinkergym.tools.definition import named

OWN = f"{PREFIX}environment"
"""The metric with the environment's own reward."""


def action_characters(action: object) -> float:
    """The length of the action."""
    return float(len(action)) if isinstance(action, str) else 0.0


def step() -> float:
    """1 for each step: with a negative weight, a cost per step."""
    return 1.0


BUILT_IN: dict[str, Callable[..., Any]] = {"action_characters": action_characters, "step": step}
"""Terms that need only a weight."""


class RewardTerms(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Add weighted terms to each step's reward, and log them.

    A term is a function whose parameters name what it needs from the step: `observation`, `action`,
    `next_observation`, `reward`, `terminated`, `truncated`, `info`. With weight 0 it is only logged. The
    environment's own reward counts in full and is logged as `reward/environment`; the terms are logged in
    `info["metrics"]` as `reward/<term>`, unweighted.

    A term that raises or does not return a finite number makes the reward invalid: the episode ends as
    `invalid_reward` and is not trained on.

    Example:
        >>> env = RewardTerms(env, weights={"action_characters": -0.001})
        >>> env = RewardTerms(env, terms={"polite": "my_pack.manners:polite"}, weights={"polite": 0.1})
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        terms: Mapping[str, str | Callable[..., Any]] | None = None,
        weights: Mapping[str, float] | None = None,
        *,
        average: Sequence[str] = (),
    ) -> None:
        """Wrap an environment.

        Args:
            env: Any environment.
            terms: Functions by the name of their term, as `module:name` or as objects; only the former can be
                stored in a spec. `action_characters` and `step` are built in.
            weights: Weights by term; a term without one is only logged.
            average: Terms whose metric is the mean over an episode's turns, as `mean/reward/<term>`, instead
                of the sum.

        Raises:
            InvalidRequestError: A weight or a name in `average` has no term, or a function cannot be found.
        """
        terms, weights = dict(terms or {}), dict(weights or {})
        averaged = {"average": list(average)} if average else {}
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, terms=terms, weights=weights, **averaged)
        super().__init__(env)
        functions = {name: BUILT_IN[name] for name in weights if name in BUILT_IN} | {
            name: named(source) if isinstance(source, str) else source for name, source in terms.items()
        }
        unknown = sorted({*weights, *average} - set(functions))
        if unknown or not functions:
            have = ", ".join([*functions, *sorted(set(BUILT_IN) - set(functions))])
            problem = f"{unknown[0]} is not a term" if unknown else "there are no terms"
            raise InvalidRequestError(
                problem, hint=f"pass its function in terms; known terms: {have}", field="weights"
            )
        self._terms = [
            Term(name, function, weights.get(name, 0.0), average=name in average)
            for name, function in functions.items()
        ]
        if any(term.name == OWN.removeprefix(PREFIX) for term in self._terms):
            raise InvalidRequestError("the name environment is reserved", field="terms")
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
            InvalidRewardError: A term failed, or the environment's reward is not a finite number.
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
        # If two such wrappers are nested, the inner one knows the environment's own reward.
        metrics = {OWN: total, **(info.get("metrics") or {})}
        for term in self._terms:
            value = term.value(facts)
            metrics[term.metric] = value
            total += term.weight * value
        return observation, finite(total, "the sum"), terminated, truncated, {**info, "metrics": metrics}
