"""The learning rate of each step: pure arithmetic on the job's settings."""

from __future__ import annotations

import math
from typing import Literal, Protocol


class Scheduled(Protocol):
    """Settings with a learning rate."""

    @property
    def learning_rate(self) -> float:
        """At its highest."""
        ...

    @property
    def lr_schedule(self) -> Literal["constant", "linear", "cosine"]:
        """How it falls."""
        ...

    @property
    def warmup_steps(self) -> int:
        """Over how many steps it rises."""
        ...


def learning_rate(algorithm: Scheduled, step: int, steps: int) -> float:
    """Return the rate of train step `step` (the first is 1) out of `steps`.

    Warm-up climbs in equal parts to the full rate at step `warmup_steps + 1`; from there `linear` and
    `cosine` fall so that the step after the last would have rate 0: every step of the job moves the weights.
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
