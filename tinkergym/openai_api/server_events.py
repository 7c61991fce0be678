"""Server-sent events, as the streams of the OpenAI API have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pydantic import BaseModel

from tinkergym.schema.sampling import Completion, CompletionPart

Event = BaseModel | dict[str, Any]

SILENT_SECONDS = 15.0
"""After this long without an event a comment is sent: proxies end silent connections."""
OPENS_SECONDS = 5.0
"""After this long without a first event a stream opens with a comment. Until then, an error is a status."""
STILL_SAMPLING = b": still sampling\n\n"


class Events(Protocol):
    """Makes the events of one response."""

    def part(self, index: int, part: CompletionPart) -> Iterator[Event]:
        """Return the events for some tokens of a choice."""
        ...

    def end(self, index: int, whole: Completion) -> Iterator[Event]:
        """Return the last events of a choice."""
        ...

    def closing(self) -> bytes:
        """Return what follows all choices."""
        ...


def as_json(value: dict[str, Any]) -> bytes:
    """Return a value as it is sent."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_event(event: Event) -> bytes:
    """Return an event as it is sent; those of `/responses` also have their type outside."""
    if isinstance(event, BaseModel):
        return b"data: " + event.model_dump_json().encode() + b"\n\n"
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + as_json(event) + b"\n\n"


def as_events(events: Iterable[Event]) -> bytes:
    """Return events as they are sent."""
    return b"".join(map(as_event, events))


def as_comment(text: str) -> bytes:
    """Return a comment, which clients skip."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The last line of a stream."""
