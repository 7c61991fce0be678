"""Importance correction: the weight of a token sampled by a different policy than the one being trained.

The engine's weights may be older than the learner's, or its kernels may round differently. These weights
correct for that difference, separately from the loss's own ratio, which then only measures how far the
updates on this batch have gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from tinkergym.errors import InvalidRequestError

CorrectionKind = Literal["truncated", "masked"]
CorrectionLevel = Literal["token", "sequence"]

_LARGEST_GAP = 80.0
"""Nats; an exponential beyond this is not a finite float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceCorrection:
    """Kind of correction, with its settings."""

    kind: CorrectionKind
    cap: float = 2.0
    """At least 1. `truncated`: the largest weight; `masked`: weights outside of [1 / cap, cap] become 0."""
    level: CorrectionLevel = "token"
    """Whether each token has its own ratio, or the product over its sequence."""

    def __post_init__(self) -> None:
        if not self.cap >= 1.0:
            raise InvalidRequestError(
                f"an importance cap of {self.cap} would reduce the weight of tokens that need no correction",
                hint="set it to 1 or more, usually 2",
                field="importance_cap",
            )


def importance_ratios(proximal_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor) -> torch.Tensor:
    """Return `exp(proximal - sampling)`, kept finite; [P], without gradient."""
    return torch.exp((proximal_logprobs - sampling_logprobs).detach().clamp(-_LARGEST_GAP, _LARGEST_GAP))


def importance_weights(ratios: torch.Tensor, *, kind: CorrectionKind, cap: float) -> torch.Tensor:
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
    return torch.where((ratios >= 1.0 / cap) & (ratios <= cap), ratios, torch.zeros_like(ratios))
