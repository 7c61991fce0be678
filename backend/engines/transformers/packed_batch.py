"""A packed batch: the new tokens of many sequences as one row, and the place of each.

Everything that all layers of one forward share is worked out here once: positions, places in the slot cache,
and which sequences attend together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.compute.cpu.attention import QUERIES, filled_keys
from backend.compute.cpu.bucket_attention import Bucket, BucketShape, buckets_in
from backend.engines.transformers.slot_cache import SlotCache

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence."""

    slot: int
    start: int
    """Tokens of the sequence already in the slot."""
    tokens: int

    @property
    def end(self) -> int:
        """Tokens in the slot afterwards."""
        return self.start + self.tokens


class PackedBatch:
    """The places of one iteration's tokens, in the form that all layers need.

    Computed with numpy: for a few hundred numbers its calls cost a tenth of torch's and do not release the
    GIL.
    """

    def __init__(self, cache: SlotCache, spans: Sequence[Span], device: torch.device) -> None:
        """Compute the numbers.

        Args:
            cache: Cache with the spans' slots.
            spans: The spans, in the order of the packed row.
            device: The model's device.
        """
        self.cache = cache
        self.tokens = sum(span.tokens for span in spans)
        starts = np.array([span.start for span in spans])  # [spans], as are the next three
        lengths = np.array([span.tokens for span in spans])
        slots = np.array([span.slot for span in spans])
        ends = lengths.cumsum()
        self._device, self._ends = device, ends
        self._slots = np.repeat(slots, lengths)  # [tokens]
        self.positions = np.repeat(starts - (ends - lengths), lengths) + np.arange(self.tokens)
        """[tokens] position of each token in its own sequence."""
        made = [
            self._bucket(starts[at], lengths[at], slots[at], (ends - lengths)[at])
            for at in _bucket_members(spans)
        ]
        self.shapes = [shape for shape, _ in made]
        """Of the buckets."""
        self.bucket_numbers = [numbers for _, own in made for numbers in own]
        """The buckets' tensors, for `buckets_in`."""
        self.masks: dict[int, list[Tensor]] = {}
        """The buckets' masks, by the layers' window; `packed_attention` stores them here for the next
        layer."""
        self._placed: dict[int, Tensor] = {}

    def last_tokens(self, spans: Sequence[int]) -> Indices:
        """[spans] index in the packed row of the last token of each of these spans."""
        return self._ends[np.array(spans, dtype=np.int64)] - 1

    def places(self, heads: int) -> Indices:
        """[tokens * heads] places of the tokens in the cache of a layer with this many heads."""
        return self.cache.places(self._slots, self.positions, heads)

    def placed(self, heads: int) -> Tensor:
        """`places` as a tensor, created once."""
        if heads not in self._placed:
            self._placed[heads] = torch.from_numpy(self.places(heads)).to(self._device)
        return self._placed[heads]

    @cached_property
    def buckets(self) -> list[Bucket]:
        """Which sequences are computed together."""
        numbers = torch.from_numpy(np.concatenate(self.bucket_numbers)).to(self._device)
        return buckets_in(numbers, self.shapes)

    def _bucket(
        self, starts: Indices, lengths: Indices, slots: Indices, offsets: Indices
    ) -> tuple[BucketShape, list[Indices]]:
        on_cpu = self._device.type == "cpu"
        spans, width, fresh = len(starts), int(lengths.max()), not starts.any()
        if on_cpu and width > 1:
            # Without a past the new tokens are the keys.
            width = filled_keys(width) if fresh else max(QUERIES, width)
        reach = int((starts + lengths).max())
        if on_cpu:
            reach = min(filled_keys(reach), self.cache.length)
        columns = np.arange(width)
        padded = real = nothing = np.zeros(0, dtype=np.int64)
        run = int(offsets[0])
        if (lengths != width).any() or (offsets != run + width * np.arange(spans)).any():
            # The bucket's tokens are no block of the packed row: they have to be gathered.
            run = -1
            # [spans * width]. Padding repeats the last token, whose numbers are finite.
            padded = (offsets[:, None] + np.minimum(columns, lengths[:, None] - 1)).reshape(-1)
            real = (columns < lengths[:, None]).reshape(-1).nonzero()[0]  # [tokens of the bucket]
        low, high, seats = _block(slots)
        numbers = [
            starts,
            padded,
            real,
            nothing if seats is None else seats,
            slots if high == 0 else nothing,
        ]
        shape = BucketShape(
            spans=spans,
            width=width,
            reach=reach,
            fresh=fresh,
            run=run,
            low=low,
            high=high,
            counts=[len(own) for own in numbers],
        )
        return shape, numbers


def _bucket_members(spans: Sequence[Span]) -> list[list[int]]:
    # Spans of one bucket have the same number of new tokens, rounded up to a power of two. Those without a
    # past form a group, because they do not read the cache.
    found: dict[tuple[int, bool], list[int]] = {}
    for index, span in enumerate(spans):
        found.setdefault(((span.tokens - 1).bit_length(), span.start == 0), []).append(index)
    return list(found.values())


def _block(slots: Indices) -> tuple[int, int, Indices | None]:
    """Return the block of slots to read in place and each span's position in it; None if not worth it.

    Attending to a few idle slots as well costs less than copying the busy ones together.
    """
    low, high = int(slots.min()), int(slots.max()) + 1
    if len(slots) == high - low and (slots == np.arange(low, high)).all():
        return low, high, None
    if 3 * len(slots) >= 2 * (high - low) and len(np.unique(slots)) == len(slots):
        return low, high, slots - low
    return 0, 0, None
