"""Attention of new tokens in buckets of similar lengths, over a cache that holds every sequence's past.

Functions of tensors that `compiled` can compile, and the buckets that they are told of.
"""

# Annotations must stay objects rather than strings: see `compiled`.
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from backend.compute.cpu.attention import QUERIES, attend


class BucketShape(NamedTuple):
    """The non-tensor part of a bucket, also used by compiled functions."""

    spans: int
    width: int
    """New tokens of the longest span; on a CPU rounded up, see `backend.compute.cpu.attention`."""
    reach: int
    """Keys that are read: those of the longest sequence including new ones; on a CPU rounded up."""
    fresh: bool
    """Whether no sequence has a past."""
    run: int
    """Where the tokens begin in the packed row if they need no padding or reordering; else -1."""
    low: int
    """First slot of the block that is read in place, and the end of the block; 0 and 0 if the spans' slots
    are copied together instead."""
    high: int
    counts: list[int]
    """Lengths of the bucket's five tensors, in order."""


class Bucket(NamedTuple):
    """Spans that are computed together, padded to the longest."""

    shape: BucketShape
    starts: Tensor
    """[spans] tokens already in each slot."""
    padded: Tensor
    """[spans * width] packed index of each token, unless they are consecutive; padding repeats the span's
    last."""
    real: Tensor
    """[real tokens] their padded index, if there is padding."""
    seats: Tensor | None
    """[spans] position of each span's slot in the block; None if they fill it in order."""
    slots: Tensor
    """[spans] slot of each span, if there is no block."""


def buckets_in(numbers: Tensor, shapes: list[BucketShape]) -> list[Bucket]:
    """Return the buckets of these shapes, whose tensors are concatenated in [numbers]."""
    found: list[Bucket] = []
    begin = 0
    for shape in shapes:
        end = begin + sum(shape.counts)
        starts, padded, real, seats, slots = torch.split_with_sizes(numbers[begin:end], shape.counts)
        found.append(Bucket(shape, starts, padded, real, seats if len(seats) > 0 else None, slots))
        begin = end
    return found


def least_queries(device: torch.device) -> int:
    """Return the minimum number of queries per head, see `backend.compute.cpu.attention`."""
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
        queries = bucket.starts[:, None] + torch.arange(shape.width, device=like.device)  # [spans, width]
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
        hidden = keys > queries[:, :, None]  # [block, width, reach]
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
        # Before anything attends: new tokens attend to themselves and to each other in the cache, too.
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
    asked = _padded(bucket, query)  # [spans, heads, width, dim]
    seats: Tensor | None = None
    if mask.numel() == 0:
        mixed = attend(asked, _padded(bucket, key), _padded(bucket, value), scale=scale, mask=None)
    else:
        seats = bucket.seats
        asked = _seated(bucket, asked)
        mixed = attend(asked, _read(bucket, keys), _read(bucket, values), scale=scale, mask=mask[:, None])
    found = mixed if seats is None else mixed.index_select(0, seats)
    flat = found.transpose(1, 2).flatten(0, 1)  # [spans * width, heads, value dim]
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
    queries = asked.reshape(block, kv_heads, sharing, dim)  # one position, `sharing` queries
    if sharing < least_queries:
        # In half the time of `repeat`.
        queries = torch.cat([queries] * -(-least_queries // sharing), dim=2)
    seen = mask[:, None].expand(-1, -1, queries.shape[2], -1)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)
    mixed = mixed[:, :, :sharing].reshape(block, heads, -1)  # without the repeated ones
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
