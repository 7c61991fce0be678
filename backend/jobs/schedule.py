"""The learning rate of each step: pure arithmetic on the job's settings."""

from __future__ import annotations

import math
from typing import Literal, Protocol


class Scheduled(Protocol):
    """Settings with a learning rate."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""
        ...

    @property
    def lr_schedule(self) -> Literal["constant", "linear", "cosine"]:
        """The decay."""
        ...

    @property
    def warmup_steps(self) -> int:
        """The number of warm-up steps."""
        ...


def learning_rate(algorithm: Scheduled, step: int, steps: int) -> float:
    """Return the rate of train step `step` (the first is 1) out of `steps`.

    Warm-up rises linearly to the full rate at step `warmup_steps + 1`. From there `linear` and `cosine` decay
    so that the step after the last would have rate 0: every step of the job changes the weights.
    """
    warmup = algorithm.warmup_steps
    if step <= warmup:
        return algorithm.learning_rate * step / (warmup + 1)
    progress = (step - 1 - warmup) / max(1, steps - warmup)
    match algorithm.lr_schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return algorithm.learning_rate * factor
