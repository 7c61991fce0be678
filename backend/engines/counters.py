"""What an engine counts, across the schedulers and slot tables that it has had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the engine's start."""

    iterations: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens that were computed."""
    copied_tokens: int = 0
    """Prompt tokens taken over from another request with the same prompt."""
    reused_tokens: int = 0
    """Prompt tokens found in the slot of the request's session."""
    sampled_tokens: int = 0
    evictions: int = 0
    """Sequences that lost their slot to others while they could still have been of use."""
    failed_forwards: int = 0
    preemptions: int = 0
    """Requests that gave their slot back for lack of memory and were computed again."""
