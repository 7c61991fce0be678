"""A training pass's interface to a loss: its inputs per token, and how tokens are aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from backend.learner.aggregation import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Inputs of a loss for some trained tokens of a batch; all [P] float32."""

    learner_logprobs: torch.Tensor
    """With gradient; from the policy being trained."""
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    proximal_logprobs: torch.Tensor | None = None
    """From the policy at the step's first update; None in that update itself, where it is the learner's."""
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """With gradient; from the policy's value head, if it has one and the batch has targets for it."""
    value_targets: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    sequence_gaps: torch.Tensor | None = None
    """Mean of (learner - anchor) over the token's whole sequence, where the anchor is the policy in the
    ratio's denominator; only if `reads_sequences`."""
    sequence_log_ratios: torch.Tensor | None = None
    """Sum of (proximal - sampling) over the token's whole sequence; only if `reads_sequences`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """A loss's results for some tokens."""

    losses: torch.Tensor
    """[P], with gradient."""
    shares: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Metrics by name, [P] bool or float: reported as their mean over all sampled tokens of the batch, or for
    `importance_...` over the tokens whose loss was computed."""
    largest: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Metrics by name, [P] float: reported as their maximum."""


class TokenLoss(Protocol):
    """A loss with its settings, for `TrainPass`."""

    @property
    def aggregation(self) -> Aggregation:
        """How the tokens' losses are combined."""
        ...

    @property
    def constant_tokens(self) -> int:
        """The divisor of a sequence's sum with `aggregation="constant"`."""
        ...

    @property
    def entropy_coefficient(self) -> float:
        """Factor on the entropy bonus; 0 computes none."""
        ...

    @property
    def reads_sequences(self) -> bool:
        """Whether a token's loss depends on its whole sequence, which runs the output head twice."""
        ...

    @property
    def silent_without_advantage(self) -> bool:
        """Whether a sequence with advantage 0 everywhere has gradient 0, so it need not be computed."""
        ...

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Return each token's loss, and metrics."""
        ...
