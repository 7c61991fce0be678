"""The optimizer of a policy: AdamW and the precision of its moments."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.schema.model import Choice


class AdamW(Choice):
    """AdamW (arXiv:1711.05101). Learning rate, schedule and weight decay are settings of the algorithm."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the gradient's running mean."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of its running mean square."""
    eps: float = Field(1e-8, gt=0, le=1)
    """Added to the root of the mean square."""
    state_bits: Literal[8, 32] = 32
    """Bits of each of the two moments per parameter. 8 needs a quarter of the memory, rounds the moments
    (arXiv:2110.02861), and requires the package bitsandbytes on the service's machine."""
