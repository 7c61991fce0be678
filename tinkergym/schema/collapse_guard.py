"""Settings of the collapse guard: what counts as collapse of a game's policies."""

from __future__ import annotations

from pydantic import Field

from tinkergym.schema.model import Choice


class CollapseGuard(Choice):
    """Three alarms. Each is a warning with the step and the last good version; the job continues.

    All figures are means over the last `window` steps. An alarm is raised once, and again only after its
    figure has recovered.
    """

    window: int = Field(10, ge=1, le=1000)
    """Number of steps over which figures are averaged."""
    anchor_drop: float = Field(0.15, gt=0)
    """`collapse_anchor_reward`: the mean return against a league's anchors is this far below its best, in
    units of return, while that of all other games is not."""
    least_entropy: float = Field(0.01, ge=0)
    """`collapse_entropy`: the entropy of sampled tokens is below this, in nats per token; 0 switches it
    off."""
    most_alike: float = Field(0.95, gt=0, le=1)
    """`collapse_draws` and `collapse_length`: a larger fraction of the games is drawn, or as long as
    `limits.max_turns` allows."""
