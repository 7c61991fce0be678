"""What learner and engines support of a model, judged by its type and configuration.

Images, how long its sequences may be, whether it keeps a state from token to token outside attention, and
formats of fewer bits for its linear layers.

Does not import torch, so that the gateway can use it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

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

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
_LENGTH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})
"""Kinds whose rotary frequencies change for a whole batch when its longest sequence exceeds the original
length."""
_ORIGINAL = "original_max_position_embeddings"


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a sequence, or None if the configuration does not say.

    A model whose rotary frequencies depend on the length is limited to its original length. Beyond it a
    token's logprob would depend on the rest of its batch, and on the later length of its sequence.

    Args:
        config: The text model's configuration, as in its `config.json`.
    """
    length = next((config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)), 0)
    if length < 1:
        return None
    return min([length, *_original_lengths(config)])


def _original_lengths(config: Mapping[str, Any]) -> Iterator[int]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for own in (rope, *rope.values()):  # For all layers, or for each type of layers by name.
        if isinstance(own, Mapping) and own.get("rope_type", own.get("type")) in _LENGTH_DEPENDENT_ROPES:
            original = own.get(_ORIGINAL, config.get(_ORIGINAL))
            if isinstance(original, int):
                yield original


_KINDS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"})
"""transformers' names for layers that keep a state from token to token outside attention."""


def keeps_a_state(model: Any) -> bool:
    """Whether a transformers model has such layers; checked by name, because a short test may not show it."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return bool(_KINDS.intersection(kinds)) or any(
        getattr(module, "_is_stateful", False) for module in model.modules()
    )
