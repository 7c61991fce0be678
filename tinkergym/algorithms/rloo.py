"""RLOO: an episode is compared with the others of its group."""

from __future__ import annotations

from typing import Literal

from tinkergym.algorithms.comparing import Comparing


class RLOO(Comparing):
    """REINFORCE leave-one-out (arXiv:2402.14740): each episode is compared with the mean of the others."""

    name: Literal["rloo"] = "rloo"

    @property
    def comparison(self) -> tuple[Literal["leave_one_out"], Literal["none"]]:
        """The mean of the group's other episodes."""
        return "leave_one_out", "none"
