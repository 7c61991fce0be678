"""REINFORCE with a running mean as the baseline.

A step's episodes are compared with the means from before the step, and added to them afterwards. So a
baseline never contains the episodes compared with it, and a step that is repeated after a kill has the same
baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.trajectory.outcomes import Credits, Memory, Outcome, StepOutcomes


class RunningBaseline(PolicyGradient):
    """REINFORCE with a running mean per seat and kind of opponent as the baseline.

    For games: seats do not share a mean, and neither do games against different kinds of opponents. An
    episode is added to the mean after it was compared. The means are part of each checkpoint.

    Source:
        Role-conditioned advantage estimation, SPIRAL, arXiv:2506.24119.
    """

    name: Literal["running_baseline"] = "running_baseline"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    decay: float = Field(0.95, ge=0, lt=1)
    """Factor by which each new episode reduces the weight of earlier ones."""

    @property
    def needs_beyond_returns(self) -> str:
        """The means."""
        return "RunningBaseline's advantages need the means that the job kept for each kind of opponent"

    def credits(self, step: StepOutcomes) -> Credits:
        """Compare each episode with earlier ones at its seat."""
        expected = [self.mean(step.memory, seat.key) for seat in step.seats]
        used = list(compress(expected, (seat.counts for seat in step.seats)))
        pairs = zip(step.seats, expected, strict=True)
        return Credits(
            [seat.earned - mean if seat.counts else None for seat, mean in pairs],
            {"baseline_mean": float(np.mean(used))} if used else {},
        )

    def remember(self, seats: Sequence[Outcome], memory: Memory) -> None:
        """Add the episodes to the means, in order: the decayed sum of returns, and the number of episodes."""
        for seat in seats:
            if seat.counts:
                total, count = memory.get(seat.key, (0.0, 0))
                memory[seat.key] = [self.decay * total + (1.0 - self.decay) * seat.earned, count + 1]

    def mean(self, memory: Mapping[str, Any], key: str) -> float:
        """Return the expected return at a seat; 0 before the first episode."""
        total, count = memory.get(key, (0.0, 0))
        # Bias correction as in Adam (arXiv:1412.6980): without it the first means would be biased towards 0.
        return float(total / (1.0 - self.decay**count)) if count else 0.0
