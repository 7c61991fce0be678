"""What a model's architecture means for its sequences, to learner and engines alike.

How long they may be, and whether it keeps a state from token to token outside attention.

Does not import torch, so that the gateway can use it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
"""transformers' names for layers with such a state."""


def keeps_a_state(model: Any) -> bool:
    """Whether a transformers model has such layers; checked by name, because a short test may not show it."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return bool(_KINDS.intersection(kinds)) or any(
        getattr(module, "_is_stateful", False) for module in model.modules()
    )
