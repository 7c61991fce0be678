"""Losses: pure functions from logprobs and advantages to one loss per sampled token.

The ratio is always taken against the logprobs that came with the tokens, those of the policy that sampled
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from backend.learner.aggregation import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Which loss, with which settings. All of them are positive."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    aggregation: Aggregation = "token"
    entropy_coefficient: float = 0.0
    """In front of `token_entropies`, which is subtracted from the loss."""
    constant_tokens: int = 1
    """What `aggregation="constant"` divides a sequence's sum by."""


def clipped_policy_loss(
    learner_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance-weighted policy gradient with PPO's pessimistic clipping, per token.

    `-min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)`. A clipped token has
    gradient 0.

    Args:
        learner_logprobs: [P] float32, with gradient; of the policy that is being trained.
        sampling_logprobs: [P] float32; of the policy that sampled, at the same temperature.
        advantages: [P] float32.
        clip_low: How far the ratio may fall below 1 where the advantage is negative.
        clip_high: How far it may rise above 1 where the advantage is positive.

    Returns:
        losses: [P] float32.
        clipped: [P] bool, where the clipped term was taken.

    Source:
        PPO, arXiv:1707.06347; the two bounds apart, DAPO's clip-higher, arXiv:2503.14476.
    """
    ratios = torch.exp(learner_logprobs - sampling_logprobs)
    low, high = 1.0 - clip_low, 1.0 + clip_high
    clipped = ((ratios > high) & (advantages > 0)) | ((ratios < low) & (advantages < 0))
    # `where` instead of `min`: the clipped term has no gradient, and the other one all of it, also in a tie.
    return -advantages * torch.where(clipped, ratios.detach().clamp(low, high), ratios), clipped


def token_entropies(logprobs: torch.Tensor) -> torch.Tensor:
    """Return how undecided a policy is about each next token, in nats.

    Args:
        logprobs: [P, V] float32, of the whole vocabulary at the sampling temperature; each row's exponentials
            sum to 1.

    Returns:
        [P] float32, from 0 to log V.

    Source:
        As a bonus against early certainty: A3C, arXiv:1602.01783.
    """
    return -(logprobs.exp() * logprobs).sum(-1)
