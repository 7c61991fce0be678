"""Attention over a packed batch: as transformers' attention interface, and as functions of tensors.

All new tokens of an iteration, prompts and single sampled tokens, are concatenated in a batch of one row, so
no linear layer computes padding. Only attention knows the sequence boundaries: it stores the new keys and
values in the slot cache and attends to the slots.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from backend.compute.cpu.bucket_attention import attend_in_buckets, bucket_masks, least_queries
from backend.compute.device_lock import products_undivided
from backend.engines.transformers.packed_batch import PackedBatch

ATTENTION_NAME = "tinkergym_packed"
_REFUSED_OPTIONS = frozenset({"softcap", "s_aux", "position_bias", "head_mask"})


def packed_attention(  # noqa: PLR0917 - the order that transformers calls its attention functions in
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedBatch | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention with the signature of transformers' attention functions, for the batch `packed`.

    Args:
        module: The attention layer; its `layer_idx` names its part of the cache.
        query: [1, heads, tokens, dim].
        key: [1, key-value heads, tokens, dim].
        value: [1, key-value heads, tokens, value dim].
        attention_mask: Unused; the spans determine the mask.
        scaling: Factor on the scores; None is `dim ** -0.5`.
        sliding_window: How many tokens a token can attend to, including itself; None is all.
        packed: Which token belongs to which slot.
        others: Other options of the model; options that would change the result are refused.

    Returns:
        [1, tokens, heads, value dim], and no attention weights.
    """
    refused = sorted(name for name in _REFUSED_OPTIONS if others.get(name) is not None)
    if refused:
        raise NotImplementedError(f"attention with {', '.join(refused)}")
    assert packed is not None, "the engine's copy of a model only runs packed batches"
    layer: int = module.layer_idx  # type: ignore[assignment]
    cache, window = packed.cache, sliding_window or 0
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # [tokens, heads, dim]
    keys, values = cache.layer(layer, heads=key.shape[1], key_dim=key.shape[2], value_dim=value.shape[2])
    # Layers with equal windows have equal masks: the first one makes them.
    if window not in packed.masks:
        packed.masks[window] = bucket_masks(packed.buckets, window, query)
    with attention_undivided():
        mixed = attend_in_buckets(
            query,
            key,
            value,
            keys,
            values,
            packed.placed(key.shape[1]),
            packed.buckets,
            packed.masks[window],
            scaling if scaling is not None else query.shape[-1] ** -0.5,
            least_queries(query.device),
        )
    return mixed[None], None  # [1, tokens, heads, value dim]


def attention_undivided() -> Any:
    """Return a context for attention: with several threads, that of `products_undivided`."""
    return products_undivided() if torch.get_num_threads() > 1 else nullcontext()


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
