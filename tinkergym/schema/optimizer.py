"""The optimizer of a policy: AdamW, and how its moments are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.schema.model import Choice


class AdamW(Choice):
    """AdamW (arXiv:1711.05101). Learning rate, schedule and weight decay are the algorithm's."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """How much of the gradient's running mean stays at each update."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """How much of its running mean square stays."""
    eps: float = Field(1e-8, gt=0, le=1)
    """Added to the root of the mean square."""
    state_bits: Literal[8, 32] = 32
    """How many bits each of the two moments has per parameter. 8 takes a quarter of the memory, rounds the
    moments (arXiv:2110.02861), and needs the package bitsandbytes on the service's machine.
    """
