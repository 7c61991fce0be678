"""How an environment worker ended, which decides whose fault it may have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WorkerEnd = Literal["died", "silent", "not_needed"]
"""By itself, or by the scheduler: because it was silent, or no longer needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRemains:
    """What is known of an environment worker after its end, from the machine on which it ran."""

    in_calls: tuple[str, ...] = ()
    """Episodes that were inside a call of their environment."""
    stall: str = ""
    """The stacks of a worker that was ended because its interpreter was blocked."""
