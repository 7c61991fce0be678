"""The value loss: how far a value head is from its targets. Pure functions, per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """The weight of the value loss relative to the policy's, and its clipping."""

    coefficient: float
    """Above 0."""
    clip: float | None = None
    """See `value_losses`."""


def value_losses(
    values: torch.Tensor,
    targets: torch.Tensor,
    old_values: torch.Tensor | None = None,
    *,
    clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
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
        return squares, torch.zeros_like(values, dtype=torch.bool)
    bounded = old_values + (values.detach() - old_values).clamp(-clip, clip)
    held = 0.5 * (bounded - targets).square()
    # Within the bound both are equal: then the one with the gradient is used.
    clipped = (held > squares.detach()) & ((values.detach() - old_values).abs() > clip)
    return torch.where(clipped, held, squares), clipped
