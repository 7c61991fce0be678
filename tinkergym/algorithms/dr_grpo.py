"""Dr. GRPO: GRPO without its two divisions."""

from __future__ import annotations

from typing import Literal

from tinkergym.algorithms.comparing import Comparing


class DrGRPO(Comparing):
    """GRPO done right (arXiv:2503.20783): no division by standard deviation or completion length."""

    name: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Literal["token", "sequence", "constant"] = "constant"

    @property
    def comparison(self) -> tuple[Literal["group"], Literal["none"]]:
        """The group's mean."""
        return "group", "none"
