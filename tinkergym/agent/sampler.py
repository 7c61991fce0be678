"""What the loop needs from a sampler: an engine in this process, or the service over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinkergym.schema.sampling import Completion, CompletionPart, SampleFailure, SampleRequest

Deliver = Callable[[Sequence[Completion | SampleFailure]], None]
"""Receives finished requests; may be called from any thread, an engine's own too, and returns at once.

If its attribute `gone` exists and becomes true, the caller has disconnected, and the sampler may stop. If its
attribute `parts` exists, it is called likewise with tokens of unfinished requests with `stream`.
"""


def has_gone(deliver: Deliver | None) -> bool:
    """Whether the caller has disconnected, so that further tokens would be wasted; without one it has not."""
    return bool(getattr(deliver, "gone", False))


def deliver_parts(deliver: Deliver, parts: Sequence[CompletionPart]) -> None:
    """Deliver tokens of unfinished requests, if the caller takes any."""
    take = getattr(deliver, "parts", None)
    if take is not None:
        take(parts)


class Sampler(Protocol):
    """Samples tokens. Thread-safe.

    If its method `expect` exists, it takes a function that returns how many further requests are likely soon.
    """

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`, singly or several at a time."""
        ...

    def close(self) -> None:
        """Stop; queued requests may stay unanswered."""
        ...
