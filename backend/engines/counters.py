"""An engine's counters, which survive its schedulers and slot tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the engine's start."""

    iterations: int = 0
    prefilled_tokens: int = 0
    """Computed prompt tokens."""
    copied_tokens: int = 0
    """Prompt tokens copied from another request with the same prompt."""
    reused_tokens: int = 0
    """Prompt tokens found in the slot of the request's session."""
    sampled_tokens: int = 0
    evictions: int = 0
    """Cached sequences evicted while they could still have been reused."""
    failed_forwards: int = 0
    preemptions: int = 0
    """Requests preempted for lack of memory and computed again."""
