"""The error for requests with images to a model that supports only text."""

from __future__ import annotations

from tinkergym.errors import UnsupportedPartError
from tinkergym.schema.sampling import SampleRequest


def images_refused(request: SampleRequest) -> UnsupportedPartError | None:
    """Return the error for a request with images; None if it has none."""
    if not request.images:
        return None
    return UnsupportedPartError(
        "the prompt contains an 'image' part, but this model supports only text",
        hint="leave images out of the prompt",
        field="images",
    )
