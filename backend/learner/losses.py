"""Losses: pure functions from logprobs and advantages to one loss per sampled token.

The ratio is taken against the logprobs that came with the tokens, from the policy that sampled them; with an
importance correction, against those of the policy at the step's first update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from backend.learner.aggregation import Aggregation
from backend.learner.importance import ImportanceCorrection, importance_ratios, importance_weights
from backend.learner.kl import kl_estimates
from backend.learner.token_loss import LossTokens, TokenLosses
from backend.learner.value_loss import ValueLoss, value_losses
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.algorithms import KLEstimator, LossName


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """A loss and its settings. All numbers are positive, or 0 if that disables a term."""

    name: LossName = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high] by `ppo`, `cispo` and `gspo`."""
    dual_clip: float | None = None
    """See `clipped_policy_loss`; used by `ppo` and `gspo`."""
    dro_beta: float = 0.1
    """See `dro_loss`."""
    aggregation: Aggregation = "token"
    entropy_coefficient: float = 0.0
    """Factor on `token_entropies`, which are subtracted from the loss."""
    constant_tokens: int = 1
    """The divisor of a sequence's sum with `aggregation="constant"`."""
    kl_coefficient: float = 0.0
    """Factor on `kl_estimates` to the sequences' `reference_logprobs`, which are added to the loss."""
    kl_estimator: KLEstimator = "k3"
    correction: ImportanceCorrection | None = None
    """Between the sampling policy and the one at the start of the step."""
    value: ValueLoss | None = None
    """Added to the loss of a policy with a value head; its gradient also reaches the policy's weights."""

    @property
    def reads_sequences(self) -> bool:
        """Whether a token's loss depends on its whole sequence."""
        return self.name == "gspo" or (self.correction is not None and self.correction.level == "sequence")

    @property
    def silent_without_advantage(self) -> bool:
        """Whether a sequence with advantage 0 everywhere has gradient 0."""
        return (
            not self.entropy_coefficient
            and not self.kl_coefficient
            and self.name != "dro"
            and self.value is None
        )

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Return each token's loss, with correction and KL penalty, and metrics.

        Raises:
            InvalidRequestError: There is a KL penalty but no reference, or a value loss but no value head or
                no targets.
        """
        anchor = tokens.sampling_logprobs
        if self.correction is not None:
            anchor = (
                tokens.learner_logprobs.detach()
                if tokens.proximal_logprobs is None
                else tokens.proximal_logprobs
            )
        losses, clipped = self._policy_losses(tokens, anchor)
        gaps = tokens.learner_logprobs.detach() - anchor
        if self.name == "gspo":
            # Other losses use token ratios even if the correction uses sequences.
            assert tokens.sequence_gaps is not None, "TrainPass sets them for losses that read sequences"
            gaps = tokens.sequence_gaps
        above = gaps > 0
        shares = {
            "clip_fraction": clipped,
            "clip_low_fraction": clipped & ~above,
            "clip_high_fraction": clipped & above,
        }
        largest: dict[str, torch.Tensor] = {}
        if self.correction is not None:
            ratios = self._correction_ratios(tokens, anchor)
            weights = importance_weights(ratios, kind=self.correction.kind, cap=self.correction.cap)
            losses = losses * weights
            shares["importance_changed_fraction"] = weights != ratios
            shares["importance_weight_mean"] = weights
            largest["importance_ratio_max"] = ratios
            largest["importance_weight_max"] = weights
        if self.kl_coefficient:
            if tokens.reference_logprobs is None:
                raise InvalidRequestError(
                    "a KL penalty needs the reference's logprobs, which the sequences lack",
                    hint="get them from Learner.logprobs, or set kl_coefficient to 0",
                    field="reference_logprobs",
                )
            kl = kl_estimates(tokens.learner_logprobs, tokens.reference_logprobs, self.kl_estimator)
            losses = losses + self.kl_coefficient * kl
            shares["kl"] = kl.detach()
        if self.value is not None:
            if tokens.values is None or tokens.value_targets is None:
                raise InvalidRequestError(
                    "a value loss needs a policy with a value head and sequences with value_targets",
                    hint="create the policy with value_head=True, or leave out LossConfig.value",
                    field="value_targets",
                )
            missed, held = value_losses(
                tokens.values, tokens.value_targets, tokens.old_values, clip=self.value.clip
            )
            losses = losses + self.value.coefficient * missed
            shares["value_loss"] = missed.detach()
            if self.value.clip is not None:
                shares["value_clip_fraction"] = held
        return TokenLosses(losses=losses, shares=shares, largest=largest)

    def _policy_losses(self, tokens: LossTokens, anchor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        learner, advantages = tokens.learner_logprobs, tokens.advantages
        none = torch.zeros_like(advantages, dtype=torch.bool)
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        match self.name:
            case "ppo":
                return clipped_policy_loss(learner, anchor, advantages, **bounds, dual_clip=self.dual_clip)
            case "gspo":
                assert tokens.sequence_gaps is not None, "TrainPass sets them for losses that read sequences"
                return gspo_loss(
                    learner, tokens.sequence_gaps, advantages, **bounds, dual_clip=self.dual_clip
                )
            case "cispo":
                return cispo_loss(learner, anchor, advantages, **bounds)
            case "reinforce":
                return reinforce_loss(learner, advantages), none
            case "importance_sampling":
                return importance_sampling_loss(learner, anchor, advantages), none
            case "dro":
                return dro_loss(learner, anchor, advantages, beta=self.dro_beta), none

    def _correction_ratios(self, tokens: LossTokens, anchor: torch.Tensor) -> torch.Tensor:
        if tokens.sequence_log_ratios is not None and self.correction and self.correction.level == "sequence":
            return importance_ratios(tokens.sequence_log_ratios, torch.zeros_like(anchor))
        return importance_ratios(anchor, tokens.sampling_logprobs)


def clipped_policy_loss(
    learner_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    ratios = torch.exp(learner_logprobs - sampling_logprobs)
    return _clipped(ratios, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def _clipped(
    ratios: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = 1.0 - clip_low, 1.0 + clip_high
    clipped = ((ratios > high) & (advantages > 0)) | ((ratios < low) & (advantages < 0))
    bounded = ratios.detach().clamp(low, high)
    if dual_clip is not None:
        far = (ratios > dual_clip) & (advantages < 0)
        clipped = clipped | far
        bounded = torch.where(far, torch.full_like(bounded, dual_clip), bounded)
    # `where` instead of `min`: the clipped term has no gradient, and the other one a full gradient, also in a
    # tie.
    return -advantages * torch.where(clipped, bounded, ratios), clipped


def reinforce_loss(learner_logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Return `-advantage * logprob` per token: the policy gradient, treating samples as on-policy.

    Args:
        learner_logprobs: [P], with gradient.
        advantages: [P].

    Source:
        Williams, "Simple statistical gradient-following algorithms", Machine Learning 8, 1992.
    """
    return -advantages * learner_logprobs


def importance_sampling_loss(
    learner_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Return `-ratio * advantage` per token: the policy gradient for tokens sampled by another policy.

    Args:
        learner_logprobs: [P], with gradient.
        sampling_logprobs: [P]; from the policy that sampled.
        advantages: [P].

    Source:
        Degris, White and Sutton, "Off-policy actor-critic", arXiv:1205.4839; PPO's equation 6.
    """
    return -advantages * torch.exp(learner_logprobs - sampling_logprobs)


def cispo_loss(
    learner_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    ratios = torch.exp(learner_logprobs - sampling_logprobs).detach()
    weights = ratios.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weights * advantages * learner_logprobs, weights != ratios


def gspo_loss(
    learner_logprobs: torch.Tensor,
    sequence_gaps: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    ratios = torch.exp(sequence_gaps.detach() + (learner_logprobs - learner_logprobs.detach()))
    return _clipped(ratios, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def dro_loss(
    learner_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    beta: float,
) -> torch.Tensor:
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
        Direct Reward Optimisation, arXiv:2405.19107, per token.
    """
    gap = learner_logprobs - sampling_logprobs
    return -(advantages * gap - 0.5 * beta * gap.square())


def token_entropies(logprobs: torch.Tensor) -> torch.Tensor:
    """Return the policy's entropy for each next token, in nats.

    Args:
        logprobs: [P, V] float32, of the whole vocabulary at the sampling temperature; each row's exponentials
            sum to 1.

    Returns:
        [P] float32, from 0 to log V.

    Source:
        As a bonus against premature convergence: A3C, arXiv:1602.01783.
    """
    return -(logprobs.exp() * logprobs).sum(-1)
