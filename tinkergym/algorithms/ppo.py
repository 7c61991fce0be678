"""PPO: the advantage of each sampled token, from a value head's estimates.

The time steps of an episode are its sampled tokens, over all turns and segments; a turn's reward is paid at
its last token. Observations take no time steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from tinkergym.advantages import STD_EPSILON
from tinkergym.errors import InvalidRequestError
from tinkergym.policy_losses import LossTokens, Tensor, TokenLosses
from tinkergym.schema.policy_gradient import LARGEST, PolicyGradient
from tinkergym.trajectory.outcomes import Credits, FloatArray, Outcome, StepOutcomes, TokenCredit

SeatCredit = Mapping[int, TokenCredit]


class PPO(PolicyGradient):
    """Proximal policy optimization (arXiv:1707.06347): tokens are compared with a value head's estimates.

    The value head is a linear function of the policy's last hidden state. It learns with the policy, in the
    same pass, from generalized advantage estimates (GAE, arXiv:1506.02438). No groups are needed.
    """

    name: Literal["ppo"] = "ppo"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per sampled token."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """λ of generalized advantage estimation: 1 uses only the rewards, 0 only the value head's estimates."""
    whiten_advantages: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 over the step's tokens."""
    value_coefficient: float = Field(0.1, gt=0, le=LARGEST)
    """Weight of the value loss, half the squared error, next to the policy's loss."""
    value_clip: float | None = Field(None, gt=0, le=LARGEST)
    """How far a value may move within a step, in units of return; None means no bound."""
    value_learning_rate: float = Field(0.05, gt=0, le=10)
    """Learning rate of the value head, with the same schedule: roughly how far an update moves a value, in
    units of return."""

    @property
    def needs_beyond_returns(self) -> str:
        """The values."""
        return "PPO's advantages need its value head"

    @property
    def credited(self) -> Literal["token"]:
        """Each token, as the value head has an estimate before each."""
        return "token"

    @property
    def head_learning_rate(self) -> float:
        """As set by `value_learning_rate`."""
        return self.value_learning_rate

    @model_validator(mode="after")
    def _values_move_within_a_step(self) -> Self:
        self._refuse_idle("value_clip", self._learns_once, "updates_per_step or minibatches above 1")
        return self

    def credits(self, step: StepOutcomes) -> Credits:
        """Estimate the advantages of the tokens of every episode that has values, and judge the values."""
        found = [
            self._estimated(seat, values) if values else None
            for seat, values in zip(step.seats, step.values(), strict=True)
        ]
        metrics = value_metrics([credit for own in found if own for credit in own.values()])
        return Credits(whitened_credits(step.seats, found) if self.whiten_advantages else found, metrics)

    @property
    def silent_without_advantage(self) -> bool:
        """False: the values learn from every episode."""
        return False

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Add the value loss to the policy's; its gradient also reaches the policy's weights.

        Raises:
            InvalidRequestError: There is no value head, or there are no targets for it.
        """
        if tokens.values is None or tokens.value_targets is None:
            raise InvalidRequestError(
                "a value loss needs a policy with a value head and sequences with value_targets",
                hint="create the policy with value_head=True, or choose another algorithm",
                field="value_targets",
            )
        policy = super().token_losses(tokens)
        missed, held = value_losses(
            tokens.values, tokens.value_targets, tokens.old_values, clip=self.value_clip
        )
        shares = {**policy.shares, "value_loss": missed.detach()}
        if self.value_clip is not None:
            shares["value_clip_fraction"] = held
        return replace(policy, losses=policy.losses + self.value_coefficient * missed, shares=shares)

    def _estimated(self, seat: Outcome, values: Mapping[int, npt.NDArray[np.float32]]) -> SeatCredit:
        """Return the credit of an episode by segment: every one with a sampled token has values."""
        paid = turn_payments(seat)
        paid -= np.concatenate([seat.token_costs.get(k, np.zeros(len(own))) for k, own in values.items()])
        expected = np.concatenate([*values.values()]).astype(np.float64)
        advantages = generalized_advantages(paid, expected, gamma=self.gamma, gae_lambda=self.gae_lambda)
        ends = np.cumsum([len(own) for own in values.values()])[:-1]
        parts = [np.split(numbers, ends) for numbers in (advantages, advantages + expected, expected)]
        return {
            k: TokenCredit(advantages=own, value_targets=target, old_values=old)
            for k, own, target, old in zip(values, *parts, strict=True)
        }


def generalized_advantages(
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


def turn_payments(seat: Outcome) -> FloatArray:
    """Return the reward at each sampled token of an episode: a turn's reward at its last token, else 0.

    A turn without a sampled token has its reward paid at the one before it, or the very first.

    Args:
        seat: With at least one sampled token.

    Returns:
        [sampled tokens], over all segments, in the order in which they were sampled.
    """
    counts = [np.cumsum(segment.loss_mask, dtype=np.int64) for segment in seat.trajectory.segments]
    before = np.cumsum([0, *(int(count[-1]) if len(count) else 0 for count in counts)])
    paid = np.zeros(int(before[-1]))
    for turn, reward in zip(seat.trajectory.turns, seat.rewards, strict=True):
        sampled = int(counts[turn.segment][turn.end - 1]) if turn.end else 0
        paid[max(int(before[turn.segment]) + sampled - 1, 0)] += reward
    return paid


def whitened_credits(
    seats: Sequence[Outcome], credited: Sequence[SeatCredit | None]
) -> list[SeatCredit | None]:
    """Normalize the advantages of the trained tokens to mean 0 and deviation 1; those of others become 0.

    Each agent's separately: a mean over several seats would credit each with how well the other ones pay.
    """
    found: list[dict[int, TokenCredit] | None] = [None if own is None else {} for own in credited]
    for agent in dict.fromkeys(seat.trajectory.agent for seat in seats):
        places = [
            (n, k, credit, seats[n].trained[k][np.asarray(seats[n].trajectory.segments[k].loss_mask, bool)])
            for n, own in enumerate(credited)
            if own and seats[n].trajectory.agent == agent
            for k, credit in own.items()
        ]
        flat = whitened(np.concatenate([np.zeros(0), *(one.advantages[mask] for *_, one, mask in places)]))
        start = 0
        for n, k, credit, mask in places:
            advantages = np.zeros(len(mask))
            advantages[mask] = flat[start : (start := start + int(mask.sum()))]
            found[n][k] = replace(credit, advantages=advantages)  # type: ignore[index]
    return list(found)


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


def value_metrics(credited: Sequence[TokenCredit]) -> dict[str, float]:
    """Return how good the values were before the update: value_mean, explained_variance.

    The latter is missing if all targets are equal.
    """
    if not credited:
        return {}
    old = np.concatenate([credit.old_values for credit in credited])
    targets = np.concatenate([credit.value_targets for credit in credited])
    metrics = {"value_mean": float(old.mean())}
    explained = explained_variance(old, targets)
    return metrics if explained is None else {**metrics, "explained_variance": explained}


def value_losses(
    values: Tensor,
    targets: Tensor,
    old_values: Tensor | None = None,
    *,
    clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return half the squared distance from the targets, per token.

    With `clip` the larger of that and the same for `old_values + clamp(values - old_values, -clip, clip)`: a
    value that has moved by more than `clip` towards its target within a step moves no further.

    Args:
        values: [P] float32, with gradient.
        targets: [P] float32.
        old_values: [P] float32, from the step's first update; only used by `clip`. None is that update
            itself.
        clip: Above 0, in units of return; None: no clipping.

    Returns:
        losses: [P] float32.
        clipped: [P] bool, where the clipped term was used, whose gradient is 0.

    Source:
        PPO, arXiv:1707.06347, equation 9, with the clipping of its authors' implementation; see
        "Implementation matters in deep policy gradients", arXiv:2005.12729, section 3.
    """
    squares = 0.5 * (values - targets).square()
    if clip is None or old_values is None:
        return squares, values.new_zeros(values.shape, dtype=bool)
    bounded = old_values + (values.detach() - old_values).clamp(-clip, clip)
    held = 0.5 * (bounded - targets).square()
    # Within the bound both are equal: then the one with the gradient is used.
    clipped = (held > squares.detach()) & ((values.detach() - old_values).abs() > clip)
    return held.where(clipped, squares), clipped
