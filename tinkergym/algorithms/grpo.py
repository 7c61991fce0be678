"""GRPO, where an episode is compared with its group, and Dr. GRPO, which leaves out its two divisions."""

from __future__ import annotations

from typing import Literal

from tinkergym.algorithms.comparing import Comparing


class GRPO(Comparing):
    """Group relative policy optimization (arXiv:2402.03300): each episode is compared with its group."""

    name: Literal["grpo"] = "grpo"
    baseline: Literal["group", "batch"] = "group"
    """The baseline of an episode: its own group, or all episodes of the step."""
    normalize: Literal["std", "none"] = "none"
    """`std` divides by the standard deviation, as in the paper; `none` does not, as in Dr. GRPO
    (arXiv:2503.20783)."""

    @property
    def comparison(self) -> tuple[Literal["group", "batch"], Literal["std", "none"]]:
        """As set by `baseline` and `normalize`."""
        return self.baseline, self.normalize


class DrGRPO(Comparing):
    """GRPO done right (arXiv:2503.20783): no division by standard deviation or completion length."""

    name: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Literal["token", "sequence", "constant"] = "constant"

    @property
    def comparison(self) -> tuple[Literal["group"], Literal["none"]]:
        """The group's mean."""
        return "group", "none"
