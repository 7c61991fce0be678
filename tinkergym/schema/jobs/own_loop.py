"""A policy that a user's own loop trains."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tinkergym.schema.jobs.parts import LONGEST_SECONDS
from tinkergym.schema.jobs.training_spec import TrainingSpec


class PolicySpec(TrainingSpec):
    """A policy without a built-in loop: the client trains it with calls."""

    by_calls: ClassVar[bool] = True
    kind: Literal["policy"] = "policy"
    steps: Literal[1] = 1
    """Not used: the client decides when to end."""
    idle_seconds: float = Field(600.0, gt=0, le=LONGEST_SECONDS)
    """After this long without a call the policy is saved and gives up its place; the next call brings it
    back."""
    checkpoint_every: int = Field(50, ge=1, le=1000)
    """Calls between automatic checkpoints; large calls and publishes may need one earlier. When a worker
    dies, calls after the newest checkpoint are repeated."""

    @property
    def played(self) -> None:
        """None: its episodes, if any, are its client's."""
