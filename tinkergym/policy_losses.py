"""Losses of a policy, one per sampled token: pure functions of logprobs and advantages.

They are given tensors and use their methods only, so nothing here imports torch. The ratio is taken against
the logprobs that came with the tokens, from the policy that sampled them; with an importance correction,
against those of the policy at the step's first update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Tensor = Any
"""A torch tensor."""
LossName = Literal["ppo", "reinforce", "importance_sampling", "cispo", "gspo", "dro"]
KLEstimator = Literal["k1", "k2", "k3"]
CorrectionKind = Literal["truncated", "masked"]

_LARGEST_GAP = 80.0
"""Nats; an exponential beyond this is not a finite float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Inputs of a loss for some trained tokens of a batch; all [P] float32."""

    learner_logprobs: Tensor
    """With gradient; from the policy being trained."""
    sampling_logprobs: Tensor
    advantages: Tensor
    proximal_logprobs: Tensor | None = None
    """From the policy at the step's first update; None in that update itself, where it is the learner's."""
    reference_logprobs: Tensor | None = None
    values: Tensor | None = None
    """With gradient; from the policy's value head, if it has one and the batch has targets for it."""
    value_targets: Tensor | None = None
    old_values: Tensor | None = None
    sequence_gaps: Tensor | None = None
    """Mean of (learner - anchor) over the token's whole sequence, where the anchor is the policy in the
    ratio's denominator; only for a loss that `reads_sequences`."""
    sequence_log_ratios: Tensor | None = None
    """Sum of (proximal - sampling) over the token's whole sequence, in the same cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """A loss's results for some tokens."""

    losses: Tensor
    """[P], with gradient."""
    shares: Mapping[str, Tensor] = field(default_factory=dict)
    """Metrics by name, [P] bool or float: reported as their mean over all sampled tokens of the batch, or for
    `importance_...` over the tokens whose loss was computed."""
    largest: Mapping[str, Tensor] = field(default_factory=dict)
    """Metrics by name, [P] float: reported as their maximum."""


def clipped_policy_loss(
    learner_logprobs: Tensor,
    sampling_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Importance-weighted policy gradient with PPO's pessimistic clipping, per token.

    `-min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)`. A clipped token has
    gradient 0.

    Args:
        learner_logprobs: [P] float32, with gradient; from the policy being trained.
        sampling_logprobs: [P] float32; from the policy that sampled, at the same temperature.
        advantages: [P] float32.
        clip_low: How far the ratio may fall below 1 if the advantage is negative.
        clip_high: How far it may rise above 1 if the advantage is positive.
        dual_clip: Above 1 + clip_high: if the advantage is negative, the ratio is limited to this, so one
            token that became far more likely cannot dominate. None: no limit.

    Returns:
        losses: [P] float32.
        clipped: [P] bool, where a clipped term was taken.

    Source:
        PPO, arXiv:1707.06347, equation 7; separate bounds, DAPO's clip-higher, arXiv:2503.14476;
        dual clip, arXiv:1912.09729.
    """
    ratios = (learner_logprobs - sampling_logprobs).exp()
    return _clipped(ratios, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def _clipped(
    ratios: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    low, high = 1.0 - clip_low, 1.0 + clip_high
    clipped = ((ratios > high) & (advantages > 0)) | ((ratios < low) & (advantages < 0))
    bounded = ratios.detach().clamp(low, high)
    if dual_clip is not None:
        far = (ratios > dual_clip) & (advantages < 0)
        clipped = clipped | far
        bounded = bounded.masked_fill(far, dual_clip)
    # `where` instead of `min`: the clipped term has no gradient, and the other one a full gradient, also in a
    # tie.
    return -advantages * bounded.where(clipped, ratios), clipped


def reinforce_loss(learner_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return `-advantage * logprob` per token: the policy gradient, treating samples as on-policy.

    Args:
        learner_logprobs: [P], with gradient.
        advantages: [P].

    Source:
        Williams, "Simple statistical gradient-following algorithms", Machine Learning 8, 1992.
    """
    return -advantages * learner_logprobs


def importance_sampling_loss(
    learner_logprobs: Tensor, sampling_logprobs: Tensor, advantages: Tensor
) -> Tensor:
    """Return `-ratio * advantage` per token: the policy gradient for tokens sampled by another policy.

    Args:
        learner_logprobs: [P], with gradient.
        sampling_logprobs: [P]; from the policy that sampled.
        advantages: [P].

    Source:
        Degris, White and Sutton, "Off-policy actor-critic", arXiv:1205.4839; PPO's equation 6.
    """
    return -advantages * (learner_logprobs - sampling_logprobs).exp()


def cispo_loss(
    learner_logprobs: Tensor,
    sampling_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """Policy gradient that clips the importance weight rather than the update: every token keeps a gradient.

    `-stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high)) * advantage * logprob`.

    Args:
        learner_logprobs: [P], with gradient.
        sampling_logprobs: [P]; from the policy that sampled.
        advantages: [P].
        clip_low: 1 leaves the ratio unbounded below, as in the paper.
        clip_high: The weight is at most 1 + clip_high.

    Returns:
        losses: [P].
        clipped: [P] bool, where the weight differs from the ratio.

    Source:
        CISPO in MiniMax-M1, arXiv:2506.13585.
    """
    ratios = (learner_logprobs - sampling_logprobs).exp().detach()
    weights = ratios.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weights * advantages * learner_logprobs, weights != ratios


def gspo_loss(
    learner_logprobs: Tensor,
    sequence_gaps: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Like `clipped_policy_loss`, with one ratio per sequence: the geometric mean of its tokens' ratios.

    A token's ratio has the sequence's value but its own gradient (the paper's GSPO-token), so the tokens of a
    sequence may have different advantages. If they are equal, the mean over a sequence is the paper's loss,
    with its gradient: choose `aggregation="sequence"` for that.

    Args:
        learner_logprobs: [P], with gradient.
        sequence_gaps: [P], without gradient: the mean of (learner - sampling logprob) over all sampled tokens
            of the token's sequence.
        advantages: [P].
        clip_low: The ratios are far closer to 1 than those of tokens; the paper uses 3e-4.
        clip_high: The paper uses 4e-4.
        dual_clip: As in `clipped_policy_loss`.

    Source:
        GSPO, arXiv:2507.18071.
    """
    # The inner difference is 0: it only carries each token's gradient.
    ratios = (sequence_gaps.detach() + (learner_logprobs - learner_logprobs.detach())).exp()
    return _clipped(ratios, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def dro_loss(
    learner_logprobs: Tensor,
    sampling_logprobs: Tensor,
    advantages: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Policy gradient without a ratio, kept close to the sampling policy by a square.

    `-(advantage * gap - beta / 2 * gap^2)` with `gap = learner - sampling logprob`: the square of `advantage
    - beta * gap` over `2 * beta`, minus terms that do not depend on the policy. The best gap is therefore
    `advantage / beta`, and a token with advantage 0 is pulled back to its sampling logprob.

    Args:
        learner_logprobs: [P], with gradient.
        sampling_logprobs: [P]; from the policy that sampled.
        advantages: [P]; the paper's reward minus value.
        beta: The paper's tau: larger values stay closer.

    Source:
        Direct Reward Optimization, arXiv:2405.19107, per token.
    """
    gap = learner_logprobs - sampling_logprobs
    return -(advantages * gap - 0.5 * beta * gap.square())


def kl_estimates(policy_logprobs: Tensor, reference_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy || reference) at each token that the policy sampled.

    With `d = policy_logprob - reference_logprob`:

    - `k1 = d`: unbiased, of either sign, noisy. Its gradient has mean 0 over the policy's own samples, so it
      has no effect in a loss and belongs in the reward.
    - `k2 = d^2 / 2`: never negative, biased, but its gradient is, on average, that of the divergence.
    - `k3 = exp(-d) - 1 + d`: never negative, unbiased, little noise. Its gradient is, on average, that of the
      other divergence, KL(reference || policy).

    Args:
        policy_logprobs: [P], in nats; with gradient if the estimate is part of a loss.
        reference_logprobs: [P].
        estimator: Which.

    Returns:
        [P], in nats.

    Source:
        J. Schulman, "Approximating KL divergence", 2020 (joschu.net/blog/kl-approx.html); k3 in the loss as
        in GRPO, arXiv:2402.03300; the gradients, arXiv:2506.09477.
    """
    gap = policy_logprobs - reference_logprobs
    match estimator:
        case "k1":
            return gap
        case "k2":
            return 0.5 * gap.square()
        case "k3":
            # Of a small gap, `exp(-gap) - 1` would keep few digits.
            return (-gap).expm1() + gap


def importance_ratios(proximal_logprobs: Tensor, sampling_logprobs: Tensor) -> Tensor:
    """Return `exp(proximal - sampling)`, kept finite; [P], without gradient."""
    return (proximal_logprobs - sampling_logprobs).detach().clamp(-_LARGEST_GAP, _LARGEST_GAP).exp()


def importance_weights(ratios: Tensor, *, kind: CorrectionKind, cap: float) -> Tensor:
    """Turn importance ratios into token weights.

    `truncated` is `min(ratio, cap)`: bounded variance per token, with a small bias. `masked` is the ratio
    itself if `1 / cap <= ratio <= cap`, else 0: tokens on which learner and engine disagree too much are not
    trained on.

    Args:
        ratios: [P], ratios of tokens or, repeated, of their sequences.
        kind: Which of the two.
        cap: At least 1.

    Returns:
        [P]; 1 where the ratio is 1.

    Source:
        Truncated: IMPALA, arXiv:1802.01561; between engine and learner, F. Yao et al., "Your efficient RL
        framework secretly brings you off-policy RL training", 2025. Masked: IcePop in Ring-1T,
        arXiv:2510.18855.
    """
    if kind == "truncated":
        return ratios.clamp(max=cap)
    return ratios.masked_fill((ratios < 1.0 / cap) | (ratios > cap), 0.0)
