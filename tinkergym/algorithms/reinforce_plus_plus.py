"""REINFORCE++: advantages with one scale for the whole step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.algorithms.comparing import Comparing


class ReinforcePlusPlus(Comparing):
    """REINFORCE++ (arXiv:2501.03262): advantages are scaled to standard deviation 1 over the whole step."""

    name: Literal["reinforce++"] = "reinforce++"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    baseline: Literal["batch", "group"] = "batch"
    """What is subtracted first: the mean of the step, or of the group (the paper's REINFORCE++-baseline)."""

    @property
    def comparison(self) -> tuple[Literal["batch", "group"], Literal["batch_std"]]:
        """The chosen baseline, and the step's standard deviation."""
        return self.baseline, "batch_std"
