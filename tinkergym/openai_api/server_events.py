"""Server-sent events, as the streams of the OpenAI API have them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

Event = BaseModel | dict[str, Any]


def as_json(value: dict[str, Any]) -> bytes:
    """Return a value as it is sent."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_event(event: Event) -> bytes:
    """Return an event as it is sent; those of `/responses` also have their type outside."""
    if isinstance(event, BaseModel):
        return b"data: " + event.model_dump_json().encode() + b"\n\n"
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + as_json(event) + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The last line of a stream."""
