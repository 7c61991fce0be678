"""Engines that take text: what they say to a request with an image."""

from __future__ import annotations

from tinkergym.errors import UnsupportedPartError
from tinkergym.schema.sampling import SampleRequest


def images_refused(request: SampleRequest) -> UnsupportedPartError | None:
    """Return why a model that takes text does not answer this request; None if it can."""
    if not request.images:
        return None
    return UnsupportedPartError(
        "the prompt has a part of the kind 'image', and this model takes text",
        hint="leave images out of the prompt",
        field="images",
    )
