"""What the supervisor says to the operator, as a sentence for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to the service; printed, it is its sentence."""

    event: str
    """What kind of thing: a word for programs, which stays when sentences are rewritten."""
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return what a program reads."""
        return {"event": self.event, "message": self.message, **self.details}
