"""The supervisor's messages to the operator, as sentences for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of the service; printed, it is its sentence."""

    event: str
    """The kind of event for programs, stable when sentences are rewritten."""
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        return {"event": self.event, "message": self.message, **self.details}
