"""Which models are supported with images, and formats of fewer bits for their linear layers.

Uses only names, so that checks need no torch.
"""

from __future__ import annotations

from typing import Literal

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


Quantization = Literal["", "nf4", "int8"]
"""NF4 is the 4-bit format of QLoRA (arXiv:2305.14314), int8 that of LLM.int8() (arXiv:2208.07339); empty is
the number format of the service."""

BYTES_OF = {"nf4": 0.5 + 4 / 64, "int8": 1.0}
"""Of a weight, with its share of a block's scale."""
