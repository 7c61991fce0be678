"""Attention over a packed batch: as transformers' attention interface, and as functions of tensors.

All new tokens of an iteration, prompts and single sampled tokens, are concatenated in a batch of one row, so
no linear layer computes padding. Only attention knows the sequence boundaries: it stores the new keys and
values in the slot cache and attends to the slots.

`bucket_masks` and `attend_in_buckets` can be compiled by `torch.jit.script`: see `lean_decoder.py`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from backend.compute.device_lock import products_undivided
from backend.compute.grouped_attention import attend
from backend.compute.same_rounding import QUERIES
from backend.engines.transformers.packed_batch import Bucket, PackedBatch

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
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    keys, values = cache.layer(layer, heads=key.shape[1], key_dim=key.shape[2], value_dim=value.shape[2])
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
    return mixed[None], None


def attention_undivided() -> Any:
    """Return a context for attention: with several threads, that of `products_undivided`."""
    return products_undivided() if torch.get_num_threads() > 1 else nullcontext()


def least_queries(device: torch.device) -> int:
    """Return the minimum number of queries per head, see `backend.compute.same_rounding`."""
    return QUERIES if device.type == "cpu" else 1


def bucket_masks(buckets: list[Bucket], window: int, like: Tensor) -> list[Tensor]:
    """Return each bucket's [block, width, reach] mask: 0 where a new token may attend, -inf elsewhere.

    An empty mask means causal attention among the new tokens only.

    Args:
        buckets: The buckets of a packed batch.
        window: How many tokens a token can attend to, including itself; 0 is all.
        like: A tensor with the masks' dtype and device.
    """
    masks: list[Tensor] = []
    for bucket in buckets:
        shape = bucket.shape
        if shape.fresh and window == 0 and shape.width > 1:
            masks.append(like.new_zeros([0]))
            continue
        queries = bucket.starts[:, None] + torch.arange(shape.width, device=like.device)
        seats = bucket.seats
        if seats is not None:
            # Idle slots of the block attend to their first key.
            block = torch.zeros(
                [shape.high - shape.low, shape.width],
                dtype=torch.long,
                device=like.device,
            )
            queries = block.index_copy_(0, seats, queries)
        keys = torch.arange(shape.reach, device=like.device)
        hidden = keys > queries[:, :, None]
        if window > 0:
            hidden = hidden | (keys <= queries[:, :, None] - window)
        masks.append(like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf")))
    return masks


def attend_in_buckets(  # noqa: PLR0917 - compiled, where it is called by position
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    buckets: list[Bucket],
    masks: list[Tensor],
    scale: float,
    least_queries: int,
) -> Tensor:
    """Store new keys and values, and compute attention.

    Args:
        query: [tokens, heads, dim].
        key: [tokens, key-value heads, dim].
        value: [tokens, key-value heads, value dim].
        keys: [slots, key-value heads, length, dim], the layer's part of the cache.
        values: [slots, key-value heads, length, value dim].
        places: [tokens * key-value heads] where the new tokens go, see `SlotCache.places`.
        buckets: The batch's buckets.
        masks: See `bucket_masks`.
        scale: Factor on the scores.
        least_queries: See there.

    Returns:
        [tokens, heads, value dim].
    """
    for store, new in ((keys, key), (values, value)):
        width = store.shape[-1]
        store.view(-1, width).index_copy_(0, places, new.reshape(-1, width))
    if len(buckets) == 1 and buckets[0].shape.run >= 0:
        return _attend(buckets[0], masks[0], query, key, value, keys, values, scale, least_queries)
    output = query.new_empty([query.shape[0], query.shape[1], value.shape[2]])
    for bucket, mask in zip(buckets, masks):  # noqa: B905 - the compiler knows no `strict`
        found = _attend(bucket, mask, query, key, value, keys, values, scale, least_queries)
        if bucket.shape.run >= 0:
            output[bucket.shape.run : bucket.shape.run + found.shape[0]] = found
        elif bucket.shape.width == 1:
            output.index_copy_(0, bucket.padded, found)
        else:
            output.index_copy_(0, bucket.padded.index_select(0, bucket.real), found)
    return output


def _attend(  # noqa: PLR0917
    bucket: Bucket,
    mask: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    least_queries: int,
) -> Tensor:
    """Return [tokens of the bucket, heads, value dim]."""
    if bucket.shape.width == 1:
        return _attend_single(bucket, mask, query, keys, values, scale, least_queries)
    asked = _padded(bucket, query)
    seats: Tensor | None = None
    if mask.numel() == 0:
        mixed = attend(asked, _padded(bucket, key), _padded(bucket, value), scale=scale, mask=None)
    else:
        seats = bucket.seats
        asked = _seated(bucket, asked)
        mixed = attend(asked, _read(bucket, keys), _read(bucket, values), scale=scale, mask=mask[:, None])
    found = mixed if seats is None else mixed.index_select(0, seats)
    flat = found.transpose(1, 2).flatten(0, 1)
    return flat if bucket.shape.run >= 0 else flat.index_select(0, bucket.real)


def _attend_single(  # noqa: PLR0917
    bucket: Bucket,
    mask: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    least_queries: int,
) -> Tensor:
    # One new token per sequence. Heads that share keys become queries of one head, so keys are read once.
    keys, values = _read(bucket, keys), _read(bucket, values)
    asked = _seated(bucket, _rows(bucket, query))  # [block, heads, dim]
    block, kv_heads, dim = keys.shape[0], keys.shape[1], keys.shape[3]
    heads = asked.shape[1]
    sharing = heads // kv_heads
    queries = asked.reshape(block, kv_heads, sharing, dim)
    if sharing < least_queries:
        # In half the time of `repeat`.
        queries = torch.cat([queries] * -(-least_queries // sharing), dim=2)
    seen = mask[:, None].expand(-1, -1, queries.shape[2], -1)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)
    mixed = mixed[:, :, :sharing].reshape(block, heads, -1)
    seats = bucket.seats
    return mixed if seats is None else mixed.index_select(0, seats)


def _padded(bucket: Bucket, packed: Tensor) -> Tensor:
    # [tokens, heads, dim] -> [spans, heads, width, dim]
    shape, rows = bucket.shape, _rows(bucket, packed)
    return rows.reshape(shape.spans, shape.width, rows.shape[1], rows.shape[2]).transpose(1, 2)


def _rows(bucket: Bucket, packed: Tensor) -> Tensor:
    shape = bucket.shape
    if shape.run >= 0:
        return packed[shape.run : shape.run + shape.spans * shape.width]
    # On a CPU several times as fast as an index in brackets.
    return packed.index_select(0, bucket.padded)


def _seated(bucket: Bucket, rows: Tensor) -> Tensor:
    # Spreads the spans' rows over the block of slots that is read; the rest stays zero and is not looked at.
    shape, seats = bucket.shape, bucket.seats
    if seats is None:
        return rows
    spread = rows.new_zeros([shape.high - shape.low] + list(rows.shape[1:]))  # noqa: RUF005 - compiled
    return spread.index_copy_(0, seats, rows)


def _read(bucket: Bucket, store: Tensor) -> Tensor:
    shape = bucket.shape
    if shape.high > 0:
        return store[shape.low : shape.high, :, : shape.reach]
    return store[:, :, : shape.reach].index_select(0, bucket.slots)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
