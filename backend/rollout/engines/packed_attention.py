"""Attention over a packed batch: many sequences, each with some new tokens, as one row of tokens.

All new tokens of an iteration, prompts and single sampled tokens alike, stand one behind the other in a batch
of one row, so that no linear layer computes padding. Only attention knows where a sequence begins: this
module, which transformers calls in place of its own attention functions. It stores the new keys and values in
the slot cache and attends to the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from backend.rollout.engines.slot_cache import SlotCache

ATTENTION_NAME = "tinkergym_packed"
_REFUSED_OPTIONS = frozenset({"softcap", "s_aux", "position_bias", "head_mask"})


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence."""

    slot: int
    start: int
    """Tokens of the sequence that the slot holds already."""
    tokens: int

    @property
    def end(self) -> int:
        """Tokens that the slot holds afterwards."""
        return self.start + self.tokens


class PackedBatch:
    """Where the tokens of one iteration belong, as the tensors that every layer needs."""

    def __init__(self, cache: SlotCache, spans: Sequence[Span], device: torch.device) -> None:
        self.cache = cache
        self.tokens = sum(span.tokens for span in spans)
        slots = torch.tensor([span.slot for span in spans], device=device)
        starts = torch.tensor([span.start for span in spans], device=device)
        lengths = torch.tensor([span.tokens for span in spans], device=device)
        ends = lengths.cumsum(0)
        begins = ends - lengths
        self.last_tokens = ends - 1
        """[spans] where in the packed row each span's last token stands."""
        self.slot_of_token = slots.repeat_interleave(lengths, output_size=self.tokens)
        self.positions = (starts - begins).repeat_interleave(lengths, output_size=self.tokens)
        self.positions += torch.arange(self.tokens, device=device)
        """[tokens] position of each token in its own sequence."""
        self._device = device
        self.buckets = [self._bucket(spans, members) for members in _bucket_members(spans)]

    def _bucket(self, spans: Sequence[Span], members: list[int]) -> Bucket:
        offsets, total = [], 0
        for span in spans:
            offsets.append(total)
            total += span.tokens
        return Bucket(
            spans=[spans[member] for member in members],
            offsets=[offsets[member] for member in members],
            packed_tokens=total,
            device=self._device,
        )


def _bucket_members(spans: Sequence[Span]) -> list[list[int]]:
    # Spans attend together when padding them to one length wastes little: single tokens, then by powers of
    # two, and those without a past apart, because they need no look into the cache.
    found: dict[tuple[int, bool], list[int]] = {}
    for index, span in enumerate(spans):
        found.setdefault(((span.tokens - 1).bit_length(), span.start == 0), []).append(index)
    return list(found.values())


@dataclass(eq=False)
class Bucket:
    """Spans that attend together, padded to the longest of them."""

    spans: list[Span]
    offsets: list[int]
    """Where each span begins in the packed row."""
    packed_tokens: int
    device: torch.device
    _masks: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def width(self) -> int:
        """New tokens of the longest span."""
        return max(span.tokens for span in self.spans)

    @cached_property
    def reach(self) -> int:
        """Tokens of the longest sequence, the new ones included."""
        return max(span.end for span in self.spans)

    @cached_property
    def fresh(self) -> bool:
        """Whether no sequence has a past."""
        return all(span.start == 0 for span in self.spans)

    @cached_property
    def run(self) -> slice | None:
        """The packed tokens of this bucket, if they need no padding and no reordering."""
        first = self.offsets[0]
        if any(span.tokens != self.width for span in self.spans):
            return None
        if any(offset != first + index * self.width for index, offset in enumerate(self.offsets)):
            return None
        return slice(first, first + self.width * len(self.spans))

    @cached_property
    def padded(self) -> Tensor:
        """[spans * width] packed index of each token; padding repeats the span's last token."""
        columns = torch.arange(self.width, device=self.device)
        lengths = torch.tensor([span.tokens for span in self.spans], device=self.device)
        offsets = torch.tensor(self.offsets, device=self.device)
        return (offsets[:, None] + torch.minimum(columns, lengths[:, None] - 1)).flatten()

    @cached_property
    def real(self) -> tuple[Tensor, Tensor]:
        """Of the padded tokens the real ones: their padded index and their packed index."""
        columns = torch.arange(self.width, device=self.device)
        lengths = torch.tensor([span.tokens for span in self.spans], device=self.device)
        kept = (columns < lengths[:, None]).flatten().nonzero()[:, 0]
        return kept, self.padded[kept]

    @cached_property
    def seats(self) -> tuple[slice, Tensor | None] | None:
        """The block of slots to read in place, and where in it each span's slot is, if that is worth it.

        Attending to a few idle slots as well costs less than copying the busy ones together.
        """
        slots = [span.slot for span in self.spans]
        low, high = min(slots), max(slots) + 1
        if slots == list(range(low, high)):
            return slice(low, high), None
        if len(set(slots)) == len(slots) and 3 * len(slots) >= 2 * (high - low):
            return slice(low, high), torch.tensor(slots, device=self.device) - low
        return None

    @cached_property
    def slots(self) -> Tensor:
        """[spans] slot of each span."""
        return torch.tensor([span.slot for span in self.spans], device=self.device)

    def mask(self, window: int, dtype: torch.dtype) -> Tensor:
        """[block, width, reach]: 0 where a new token may look, -inf elsewhere. `window` 0 means no window."""
        if window not in self._masks:
            starts = torch.tensor([span.start for span in self.spans], device=self.device)
            queries = starts[:, None] + torch.arange(self.width, device=self.device)
            if self.seats is not None and self.seats[1] is not None:
                block = torch.zeros(
                    self.seats[0].stop - self.seats[0].start, self.width, dtype=torch.long, device=self.device
                )
                block[self.seats[1]] = queries
                queries = block
            keys = torch.arange(self.reach, device=self.device)
            hidden = keys > queries[:, :, None]
            if window:
                hidden |= keys <= queries[:, :, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=self.device)
            self._masks[window] = mask.masked_fill_(hidden, float("-inf"))
        return self._masks[window]


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
    cache.write(layer, packed.slot_of_token, packed.positions, key[0], value[0])
    call = _Call(
        query=query,
        key=key,
        value=value,
        keys=cache.keys[layer],
        values=cache.values[layer],
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or 0,
    )
    output = query.new_empty(packed.tokens, query.shape[1], value.shape[-1])
    for bucket in packed.buckets:
        if bucket.width == 1:
            _attend_single(bucket, call, output)
        else:
            _attend_several(bucket, call, output)
    return output[None], None


def _attend_single(bucket: Bucket, call: _Call, output: Tensor) -> None:
    # One new token per sequence: two batched products and a softmax. On a CPU faster than
    # scaled_dot_product_attention, whose blocks are made for many queries, and heads that share their keys
    # read them once, on any device.
    where = bucket.run if bucket.run is not None else bucket.padded
    keys, values, seats = _read(bucket, call)
    asked = _seated(call.query[0][:, where].transpose(0, 1), keys.shape[0], seats)  # [block, heads, dim]
    block, kv_heads, reach, dim = keys.shape
    heads = asked.shape[1]
    grouped = asked.reshape(block * kv_heads, heads // kv_heads, dim)
    scores = torch.bmm(grouped, keys.reshape(block * kv_heads, reach, dim).transpose(1, 2))
    scores = scores.view(block, heads, reach).mul_(call.scale).add_(bucket.mask(call.window, asked.dtype))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(asked.dtype)
    weights = weights.view(block * kv_heads, heads // kv_heads, reach)
    mixed = torch.bmm(weights, values.reshape(block * kv_heads, reach, -1)).view(block, heads, -1)
    output[where] = mixed if seats is None else mixed[seats]


def _attend_several(bucket: Bucket, call: _Call, output: Tensor) -> None:
    asked = _padded(bucket, call.query)
    mask = seats = None
    if bucket.fresh and not call.window:
        keys, values = _padded(bucket, call.key), _padded(bucket, call.value)
    else:
        keys, values, seats = _read(bucket, call)
        asked = _seated(asked, keys.shape[0], seats)
        mask = bucket.mask(call.window, asked.dtype)[:, None]
    sharing = asked.shape[1] // keys.shape[1]
    if sharing > 1 and keys.device.type != "cpu":
        # Given a mask, only the CPU's fused kernel takes fewer key heads than query heads.
        keys, values = keys.repeat_interleave(sharing, dim=1), values.repeat_interleave(sharing, dim=1)
    mixed = functional.scaled_dot_product_attention(
        asked,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=call.scale,
        enable_gqa=asked.shape[1] != keys.shape[1],
    )
    flat = (mixed if seats is None else mixed[seats]).transpose(1, 2).reshape(-1, *output.shape[1:])
    if bucket.run is not None:
        output[bucket.run] = flat
    else:
        kept, places = bucket.real
        output[places] = flat[kept]


def _padded(bucket: Bucket, packed: Tensor) -> Tensor:
    # [1, heads, tokens, dim] -> [spans, heads, width, dim]
    where = bucket.run if bucket.run is not None else bucket.padded
    rows = packed[0][:, where]
    return rows.view(rows.shape[0], len(bucket.spans), bucket.width, -1).transpose(0, 1)


def _seated(rows: Tensor, block: int, seats: Tensor | None) -> Tensor:
    # Spreads the spans' rows over the block of slots that is read; the rest stays zero and is not looked at.
    if seats is None:
        return rows
    spread = rows.new_zeros(block, *rows.shape[1:])
    spread[seats] = rows
    return spread


def _read(bucket: Bucket, call: _Call) -> tuple[Tensor, Tensor, Tensor | None]:
    if bucket.seats is not None:
        block, seats = bucket.seats
        return call.keys[block, :, : bucket.reach], call.values[block, :, : bucket.reach], seats
    return call.keys[bucket.slots, :, : bucket.reach], call.values[bucket.slots, :, : bucket.reach], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
