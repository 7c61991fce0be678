"""A training pass's interface to a loss: what it computes per token, and how tokens are aggregated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.learner.aggregation import Aggregation
from tinkergym.algorithms import GRPO
from tinkergym.policy_losses import LossTokens, Tensor, TokenLosses
from tinkergym.schema.policy_gradient import PolicyGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A loss with its settings."""

    token_losses: Callable[[LossTokens], TokenLosses]
    """Returns each token's loss, and metrics. Ranks receive it pickled."""
    aggregation: Aggregation = "token"
    """How the tokens' losses are combined."""
    constant_tokens: int = 1
    """The divisor of a sequence's sum with `aggregation="constant"`."""
    entropy_coefficient: float = 0.0
    """Factor on `token_entropies`, which are subtracted from the loss; 0 computes none."""
    corrects: bool = False
    """See `PolicyGradient`, as the next two."""
    reads_sequences: bool = False
    silent_without_advantage: bool = True


def algorithm_loss(algorithm: PolicyGradient, constant_tokens: int = 1) -> TokenLoss:
    """Return the loss of an algorithm."""
    return TokenLoss(
        token_losses=algorithm.token_losses,
        aggregation=algorithm.aggregation,
        constant_tokens=constant_tokens,
        entropy_coefficient=algorithm.entropy_coefficient,
        corrects=algorithm.corrects,
        reads_sequences=algorithm.reads_sequences,
        silent_without_advantage=algorithm.silent_without_advantage,
    )


def policy_loss(*, constant_tokens: int = 1, **settings: Any) -> TokenLoss:
    """Return the loss that an algorithm has with these settings, which the caller has checked."""
    return algorithm_loss(GRPO.model_construct(**settings), constant_tokens)


def likelihood_loss(aggregation: Aggregation = "token", constant_tokens: int = 1) -> TokenLoss:
    """Return the loss of supervised and preference training: minus each logprob times its weight.

    Supervised fine-tuning gives every trained token the weight 1. A preference loss is a function of whole
    sequences' logprobs; its gradient with respect to each of them becomes the weight of that sequence's
    tokens. There is no importance ratio, because the tokens were not sampled by a policy.
    """
    return TokenLoss(
        token_losses=weighted_likelihood, aggregation=aggregation, constant_tokens=constant_tokens
    )


def weighted_likelihood(tokens: LossTokens) -> TokenLosses:
    """Return minus each token's logprob times the weight in its `advantages`.

    With weights of 1 this is the cross-entropy of a language model (teacher forcing, Williams & Zipser 1989).
    """
    return TokenLosses(losses=-tokens.advantages * tokens.learner_logprobs)


def token_entropies(logprobs: Tensor) -> Tensor:
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
