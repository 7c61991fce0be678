"""What the loop needs from a sampler: an engine in this process, or the service over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

Deliver = Callable[[Sequence[Completion | SampleFailure]], None]
"""Receives finished requests; may be called from any thread, and returns at once."""


class Sampler(Protocol):
    """Samples tokens. Thread-safe."""

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`, singly or several at a time."""
        ...

    def close(self) -> None:
        """Stop; queued requests may stay unanswered."""
        ...
