"""Importance correction: what a token weighs that another policy sampled than the one it trains.

The engine's weights may be older than the learner's, or its numbers differ by the kernels it runs. The
weights here correct for that gap, apart from the loss's own ratio, which then only measures how far the
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
"""Nats; beyond it an exponential is no finite float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceCorrection:
    """Which correction, with which settings."""

    kind: CorrectionKind
    cap: float = 2.0
    """At least 1. `truncated`: the largest weight; `masked`: weights outside of [1 / cap, cap] become 0."""
    level: CorrectionLevel = "token"
    """Whether a token's own ratio counts, or the product of its sequence's."""

    def __post_init__(self) -> None:
        if not self.cap >= 1.0:
            raise InvalidRequestError(
                f"an importance cap of {self.cap} would cut down tokens that need no correction",
                hint="set it to 1 or more; 2 is usual",
                field="importance_cap",
            )


def importance_ratios(proximal_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor) -> torch.Tensor:
    """Return `exp(proximal - sampling)`, kept finite; [P], without gradient."""
    return torch.exp((proximal_logprobs - sampling_logprobs).detach().clamp(-_LARGEST_GAP, _LARGEST_GAP))


def importance_weights(ratios: torch.Tensor, *, kind: CorrectionKind, cap: float) -> torch.Tensor:
    """Turn importance ratios into the weights that tokens get.

    `truncated` is `min(ratio, cap)`: never more than `cap` of variance from one token, a little biased.
    `masked` is the ratio itself where `1 / cap <= ratio <= cap`, and 0 elsewhere: what the learner and the
    engine disagree about that much is not learned from.

    Args:
        ratios: [P], of tokens or, repeated, of their sequences.
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
