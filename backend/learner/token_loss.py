"""What a pass through the model needs of a loss: how it looks at each token, and how tokens are summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from backend.learner.aggregation import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Some trained tokens of a batch, as a loss sees them; all [P] float32."""

    learner_logprobs: torch.Tensor
    """With gradient; of the policy that is being trained."""
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    proximal_logprobs: torch.Tensor | None = None
    """Of the policy at the step's first update; None in that update itself, where it is the learner's."""
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    """With gradient; of the policy's value head, if it has one and the batch has targets for it."""
    value_targets: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    sequence_gaps: torch.Tensor | None = None
    """Mean of (learner - anchor) over the token's whole sequence, where the anchor is the policy that the
    ratio is taken against; only if `reads_sequences`."""
    sequence_log_ratios: torch.Tensor | None = None
    """Sum of (proximal - sampling) over the token's whole sequence; only if `reads_sequences`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """What a loss says of some tokens."""

    losses: torch.Tensor
    """[P], with gradient."""
    shares: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Metrics by name, [P] bool or float: reported as their mean over all sampled tokens of the batch, those
    called `importance_...` over the tokens whose loss was computed."""
    largest: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Metrics by name, [P] float: reported as their maximum."""


class TokenLoss(Protocol):
    """A loss with its settings, as `TrainPass` takes it."""

    @property
    def aggregation(self) -> Aggregation:
        """How the losses of the tokens become one number."""
        ...

    @property
    def constant_tokens(self) -> int:
        """What `aggregation="constant"` divides a sequence's sum by."""
        ...

    @property
    def entropy_coefficient(self) -> float:
        """In front of the entropy bonus; 0 computes none."""
        ...

    @property
    def reads_sequences(self) -> bool:
        """Whether a token's loss depends on its whole sequence; that costs the output head a second time."""
        ...

    @property
    def silent_without_advantage(self) -> bool:
        """Whether a sequence with advantage 0 everywhere has gradient 0, so that it need not be computed."""
        ...

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Return each token's loss, and what is worth counting."""
        ...
