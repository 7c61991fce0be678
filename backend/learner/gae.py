"""Generalised advantage estimation: how much better each step went than a value function expected.

Pure functions of one episode's numbers, or a batch's. They do not depend on the source of the values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.advantages import STD_EPSILON

FloatArray = npt.NDArray[np.float64]


def generalised_advantages(
    rewards: npt.ArrayLike, values: npt.ArrayLike, *, gamma: float, gae_lambda: float
) -> FloatArray:
    """Return `A_t = delta_t + gamma * lambda * A_(t+1)`, with `delta_t = r_t + gamma * V_(t+1) - V_t`.

    A step is a sampled token. V is 0 after the last one, even if a limit ended the episode: its missing
    rewards are not estimated.

    Args:
        rewards: [T], the rewards after each step of one episode.
        values: [T], the values before each step.
        gamma: Discount per step, from 0 to 1.
        gae_lambda: 1 credits a step with everything that follows, which is exact and noisy (`A` is then the
            discounted return minus the value); 0 only with the change of the value, which is as accurate as
            the values.

    Returns:
        [T] float64; adding the values gives the value function's target (the TD(lambda) return).

    Raises:
        InvalidRequestError: The lengths differ, or a number is not finite.

    Source:
        GAE, arXiv:1506.02438, equations 11 and 16.
    """
    earned, expected = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if earned.shape != expected.shape or earned.ndim != 1:
        raise InvalidRequestError(
            f"rewards have shape {earned.shape} and values {expected.shape}",
            hint="pass one of each per sampled token",
            field="values",
        )
    if not (np.isfinite(earned).all() and np.isfinite(expected).all()):
        raise InvalidRequestError(
            "a reward or a value is not finite",
            hint="the value head may have diverged: lower value_learning_rate",
            field="values",
        )
    advantages = np.zeros(len(earned))
    ahead, value_ahead = 0.0, 0.0
    for step in reversed(range(len(earned))):
        surprise = earned[step] + gamma * value_ahead - expected[step]
        ahead = advantages[step] = surprise + gamma * gae_lambda * ahead
        value_ahead = expected[step]
    return advantages


def whitened(advantages: FloatArray) -> FloatArray:
    """Normalise a batch's advantages to mean 0 and sample deviation 1 (plus 1e-6); equal ones become 0.

    Args:
        advantages: [P], of all training steps.

    Source:
        A usual detail of PPO, see "What matters in on-policy reinforcement learning", arXiv:2006.05990.
    """
    if len(advantages) < 2 or advantages.min() == advantages.max():
        return np.zeros_like(advantages)
    found: FloatArray = (advantages - advantages.mean()) / (advantages.std(ddof=1) + STD_EPSILON)
    return found


def explained_variance(values: FloatArray, targets: FloatArray) -> float | None:
    """Return the share of the targets' variance explained: `1 - Var(target - value) / Var(target)`.

    1 is all of it, 0 is no better than a constant, below 0 is worse than that.

    Args:
        values: [P].
        targets: [P], the values' targets.

    Returns:
        None if all targets are equal.
    """
    if not len(targets) or targets.min() == targets.max():
        return None
    return float(1.0 - (targets - values).var() / targets.var())
