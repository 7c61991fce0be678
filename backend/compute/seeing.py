"""Which models are supported with images; uses only names, so that the check is cheap."""

from __future__ import annotations

MROPE_MODELS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})
"""Image tokens have positions in three dimensions: time, height and width."""
IMAGE_MODELS = frozenset({"idefics3"}) | MROPE_MODELS
"""By `model_type`: a decoder behind a vision tower and a connector."""


def sees(model_type: object) -> bool:
    """Whether models of this type are supported with images."""
    return model_type in IMAGE_MODELS


def has_mrope(model_type: object) -> bool:
    """Return whether an image's tokens have positions in three dimensions."""
    return model_type in MROPE_MODELS
