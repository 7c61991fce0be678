"""A policy's optimizer, AdamW, and the settings of its steps."""

from __future__ import annotations

import math
from typing import Literal, Required, TypedDict

from pydantic import Field

from tinkergym.schema.model import Choice, UserSettings


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


MAX_GRAD_NORM, WEIGHT_DECAY = 1.0, 0.0
"""Of a step that does not say otherwise."""


class OptimizerStep(TypedDict, total=False):
    """The settings of one step."""

    learning_rate: Required[float]
    """For the policy's weights."""
    max_grad_norm: float
    """Limit for the norm of the policy's gradient, and separately for the value head's."""
    weight_decay: float
    """Of the policy's weights."""
    value_learning_rate: float
    """For the value head, if there is one; if not given, the policy's."""
    skip_zero_gradient: bool
    """Leave everything unchanged if the gradient, including the value head's, is exactly zero; True if not
    given. AdamW would otherwise move the weights by momentum and decay without learning anything."""


class Optimized(UserSettings):
    """The settings of all optimizer steps of a job."""

    learning_rate: float = Field(1e-3, gt=0, le=10)
    """Peak learning rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Constant, or decaying from `learning_rate` at the first step towards 0 at the last."""
    warmup_steps: int = Field(0, ge=0, le=10**9)
    max_grad_norm: float = Field(MAX_GRAD_NORM, gt=0)
    weight_decay: float = Field(WEIGHT_DECAY, ge=0, le=1e6)

    def optimizer_step(self, step: int, steps: int) -> OptimizerStep:
        """Return the settings of train step `step` (the first is 1) out of `steps`."""
        return {
            "learning_rate": self._rate(step, steps),
            "max_grad_norm": self.max_grad_norm,
            "weight_decay": self.weight_decay,
        }

    def _rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step.

        Warm-up rises linearly to the full rate at step `warmup_steps + 1`. From there `linear` and `cosine`
        decay so that the step after the last would have rate 0: every step of the job changes the weights.
        """
        warmup = self.warmup_steps
        if step <= warmup:
            return self.learning_rate * step / (warmup + 1)
        progress = (step - 1 - warmup) / max(1, steps - warmup)
        match self.lr_schedule:
            case "constant":
                factor = 1.0
            case "linear":
                factor = 1.0 - progress
            case "cosine":
                factor = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.learning_rate * factor
