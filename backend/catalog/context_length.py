"""How long a model's context is, from its configuration: one bound for learner and engines.

Knows no torch, so that the gateway can say it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
_LENGTH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})
"""Their rotary frequencies change for a whole batch when its longest sequence exceeds the original."""
_ORIGINAL = "original_max_position_embeddings"


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a sequence, or None if the configuration does not say.

    A model whose rotary frequencies depend on the length is kept to its original length. Beyond it a token's
    logprob would depend on what else is in its batch, and on how long its sequence becomes later.

    Args:
        config: Of the text model, as in its `config.json`.
    """
    length = next((config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)), 0)
    if length < 1:
        return None
    return min([length, *_original_lengths(config)])


def _original_lengths(config: Mapping[str, Any]) -> Iterator[int]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for own in (rope, *rope.values()):  # of all layers, or of each type of layers by name
        if isinstance(own, Mapping) and own.get("rope_type", own.get("type")) in _LENGTH_DEPENDENT_ROPES:
            original = own.get(_ORIGINAL, config.get(_ORIGINAL))
            if isinstance(original, int):
                yield original
