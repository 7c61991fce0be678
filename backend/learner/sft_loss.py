"""The likelihood loss of supervised and preference training.

Supervised fine-tuning gives every trained token the weight 1. A preference loss is a function of whole
sequences' logprobs; its gradient with respect to each of them becomes the weight of that sequence's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from backend.learner.aggregation import Aggregation
from backend.learner.token_loss import LossTokens, TokenLosses


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodLoss:
    """Minus the logprob of each trained token, times the weight in its `advantage`.

    There is no importance ratio, because the tokens were not sampled by a policy.
    """

    aggregation: Aggregation = "token"
    constant_tokens: int = 1
    entropy_coefficient: float = 0.0

    reads_sequences: ClassVar[bool] = False
    silent_without_advantage: ClassVar[bool] = True

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Return the losses; `sampling_logprobs` are ignored."""
        return TokenLosses(losses=weighted_likelihood(tokens.learner_logprobs, tokens.advantages))


def weighted_likelihood(learner_logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return minus each token's logprob times its weight.

    With weights of 1 this is the cross-entropy of a language model (teacher forcing, Williams & Zipser 1989).

    Args:
        learner_logprobs: [P] float32, with gradient, in nats.
        weights: [P] float32.

    Returns:
        [P] float32.
    """
    return -weights * learner_logprobs
