"""What counts as a sign that the play of a game's policies collapses."""

from __future__ import annotations

from pydantic import Field

from tinkergym.schema.model import Choice


class CollapseGuard(Choice):
    """Three alarms, each a warning with the step and the last good version; the job goes on.

    All figures are means over the last `window` steps. An alarm is given once, and again only after its
    figure was good in between.
    """

    window: int = Field(10, ge=1, le=1000)
    """Steps over which figures are averaged."""
    anchor_drop: float = Field(0.15, gt=0)
    """`collapse_anchor_reward`: the mean return against a league's anchors is so far below its best, in units
    of return, while that of all other games is not.
    """
    least_entropy: float = Field(0.01, ge=0)
    """`collapse_entropy`: sampled tokens have less entropy, in nats per token; 0 gives no such alarm."""
    most_alike: float = Field(0.95, gt=0, le=1)
    """`collapse_draws` and `collapse_length`: a larger share of the games is drawn, or is as long as
    `limits.max_turns` allows.
    """
