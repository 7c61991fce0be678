"""Which models take images here; knows names only, so that it costs nothing to ask."""

from __future__ import annotations

IMAGE_MODELS = frozenset({"idefics3"})
"""By `model_type`: a decoder with positions in one dimension, behind a vision tower and a connector."""


def sees(model_type: object) -> bool:
    """Whether models of this type are run with images."""
    return model_type in IMAGE_MODELS
