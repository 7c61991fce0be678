"""Attention over a packed batch, as transformers calls it in place of its own attention functions.

All new tokens of an iteration, prompts and single sampled tokens alike, stand one behind the other in a batch
of one row, so that no linear layer computes padding. Only attention knows where a sequence begins: it stores
the new keys and values in the slot cache and attends to the slots.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from backend.device_lock import products_undivided
from backend.grouped_attention import attend
from backend.rollout.engines.packed_batch import Bucket, PackedBatch
from backend.same_rounding import QUERIES

ATTENTION_NAME = "tinkergym_packed"
_REFUSED_OPTIONS = frozenset({"softcap", "s_aux", "position_bias", "head_mask"})


@dataclass(frozen=True, slots=True)
class _Call:
    """One layer's call, as the two ways to attend need it."""

    query: Tensor
    key: Tensor
    value: Tensor
    keys: Tensor
    """[slots, key-value heads, length, dim], the new tokens included."""
    values: Tensor
    scale: float
    window: int


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
    """Attend as transformers' attention functions do, for the batch given as `packed`.

    Args:
        module: The attention layer; its `layer_idx` names its part of the cache.
        query: [1, heads, tokens, dim].
        key: [1, key-value heads, tokens, dim].
        value: [1, key-value heads, tokens, value dim].
        attention_mask: Unused; the spans say everything.
        scaling: Factor on the scores; None is `dim ** -0.5`.
        sliding_window: How many tokens back a token sees, itself included; None sees all.
        packed: Which token belongs to which slot.
        others: Further options of the model; those that would change the result are refused.

    Returns:
        [1, tokens, heads, value dim], and no attention weights.
    """
    refused = sorted(name for name in _REFUSED_OPTIONS if others.get(name) is not None)
    if refused:
        raise NotImplementedError(f"attention with {', '.join(refused)}")
    assert packed is not None, "the engine's copy of a model runs on packed batches only"
    layer: int = module.layer_idx  # type: ignore[assignment]
    cache = packed.cache
    cache.write(layer, packed.places(key.shape[1]), key[0], value[0])
    call = _Call(
        query=query,
        key=key,
        value=value,
        keys=cache.keys[layer],
        values=cache.values[layer],
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or 0,
    )
    with products_undivided() if torch.get_num_threads() > 1 else nullcontext():
        return _attended(packed, call)[None], None


def _attended(packed: PackedBatch, call: _Call) -> Tensor:
    """Return [tokens, heads, value dim]."""
    if len(packed.buckets) == 1 and packed.buckets[0].run is not None:
        return _attend(packed.buckets[0], call)
    query, value = call.query, call.value
    output = query.new_empty(packed.tokens, query.shape[1], value.shape[-1])
    for bucket in packed.buckets:
        found = _attend(bucket, call)
        if bucket.run is not None:
            output[bucket.run] = found
        else:
            output.index_copy_(0, bucket.padded if bucket.width == 1 else bucket.real[1], found)
    return output


def _attend(bucket: Bucket, call: _Call) -> Tensor:
    """Return [tokens of the bucket, heads, value dim]."""
    return _attend_single(bucket, call) if bucket.width == 1 else _attend_several(bucket, call)


def _attend_single(bucket: Bucket, call: _Call) -> Tensor:
    # One new token per sequence. Heads that share their keys are queries of one head: they read them once.
    where = bucket.run if bucket.run is not None else bucket.padded
    keys, values, seats = _read(bucket, call)
    asked = _seated(_rows(call.query[0].transpose(0, 1), where), keys.shape[0], seats)  # [block, heads, dim]
    block, kv_heads, _, dim = keys.shape
    heads = asked.shape[1]
    sharing = heads // kv_heads
    queries = asked.reshape(block, kv_heads, sharing, dim)
    if sharing < QUERIES and keys.device.type == "cpu":
        # In half the time of `repeat`.
        queries = torch.cat([queries] * -(-QUERIES // sharing), dim=2)
    mask = bucket.mask(call.window, asked.dtype)[:, None].expand(-1, -1, queries.shape[2], -1)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=call.scale)
    mixed = mixed[:, :, :sharing].reshape(block, heads, -1)
    return mixed if seats is None else mixed.index_select(0, seats)


def _attend_several(bucket: Bucket, call: _Call) -> Tensor:
    asked = _padded(bucket, call.query)
    mask = seats = None
    if bucket.fresh and not call.window:
        keys, values = _padded(bucket, call.key), _padded(bucket, call.value)
    else:
        keys, values, seats = _read(bucket, call)
        asked = _seated(asked, keys.shape[0], seats)
        mask = bucket.mask(call.window, asked.dtype)[:, None]
    mixed = attend(asked, keys, values, mask=mask, scale=call.scale)
    found = mixed if seats is None else mixed.index_select(0, seats)
    flat = found.transpose(1, 2).flatten(0, 1)
    return flat if bucket.run is not None else flat.index_select(0, bucket.real[0])


def _padded(bucket: Bucket, packed: Tensor) -> Tensor:
    # [1, heads, tokens, dim] -> [spans, heads, width, dim]
    where = bucket.run if bucket.run is not None else bucket.padded
    rows = _rows(packed[0].transpose(0, 1), where)
    return rows.reshape(len(bucket.spans), bucket.width, *rows.shape[1:]).transpose(1, 2)


def _rows(tensor: Tensor, where: slice | Tensor) -> Tensor:
    # On a CPU several times as fast as an index in brackets.
    return tensor[where] if isinstance(where, slice) else tensor.index_select(0, where)


def _seated(rows: Tensor, block: int, seats: Tensor | None) -> Tensor:
    # Spreads the spans' rows over the block of slots that is read; the rest stays zero and is not looked at.
    if seats is None:
        return rows
    spread = rows.new_zeros(block, *rows.shape[1:])
    return spread.index_copy_(0, seats, rows)


def _read(bucket: Bucket, call: _Call) -> tuple[Tensor, Tensor, Tensor | None]:
    if bucket.seats is not None:
        block, seats = bucket.seats
        return call.keys[block, :, : bucket.reach], call.values[block, :, : bucket.reach], seats
    keys, values = call.keys[:, :, : bucket.reach], call.values[:, :, : bucket.reach]
    return keys.index_select(0, bucket.slots), values.index_select(0, bucket.slots), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
