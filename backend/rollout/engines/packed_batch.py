"""A packed batch: the new tokens of many sequences as one row, and where each of them belongs.

Everything that all layers of one forward share is worked out here once: positions, places in the slot cache,
and which sequences attend together.
"""

# Annotations stay what they are, not strings: see `backend.compiled`.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.rollout.engines.slot_cache import SlotCache
from backend.same_rounding import QUERIES, filled_keys

_Numbers = NDArray[np.int64]


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


class Bucket(NamedTuple):
    """Spans that attend together, padded to the longest of them; compiled functions take it, too."""

    spans: int
    width: int
    """New tokens of the longest span; on a CPU filled up, see `backend.same_rounding`."""
    reach: int
    """Keys that are read: those of the longest sequence, the new ones included; on a CPU filled up."""
    fresh: bool
    """Whether no sequence has a past."""
    run: int
    """Where in the packed row the tokens begin, if they need no padding and no reordering; else -1."""
    starts: Tensor
    """[spans] tokens that each slot holds already."""
    padded: Tensor
    """[spans * width] packed index of each token, where there is no run; padding repeats the span's last."""
    real: Tensor
    """[real tokens] their padded index, where there is padding."""
    low: int
    """First slot of the block that is read in place, and the one behind its last; 0 and 0 if the spans' slots
    are copied together instead."""
    high: int
    seats: Tensor | None
    """[spans] where in the block each span's slot is; None if they fill it in order."""
    slots: Tensor
    """[spans] slot of each span, where there is no block."""


class PackedBatch:
    """Where the tokens of one iteration belong, as the tensors that every layer needs."""

    def __init__(self, cache: SlotCache, spans: Sequence[Span], device: torch.device) -> None:
        self.cache = cache
        self.tokens = sum(span.tokens for span in spans)
        # Worked out by numpy: for a few hundred numbers its calls cost a tenth of torch's and keep Python's
        # lock.
        starts = np.array([span.start for span in spans])
        lengths = np.array([span.tokens for span in spans])
        slots = np.array([span.slot for span in spans])
        ends = lengths.cumsum()
        positions = np.repeat(starts - (ends - lengths), lengths) + np.arange(self.tokens)
        self._device, self._ends = device, ends
        self._slots, self._positions = np.repeat(slots, lengths), positions
        self.positions = self._tensor(positions)
        """[tokens] position of each token in its own sequence."""
        self._places: dict[int, Tensor] = {}
        self.buckets = [
            self._bucket(starts[at], lengths[at], slots[at], (ends - lengths)[at])
            for at in _bucket_members(spans)
        ]
        self.masks: dict[int, list[Tensor]] = {}
        """Of the buckets, by the window of a layer; `packed_attention` keeps them here for the next layer."""

    def last_tokens(self, spans: Sequence[int]) -> Tensor:
        """[spans] where in the packed row the last token of each of these spans stands."""
        return self._tensor(self._ends[np.array(spans, dtype=np.int64)] - 1)

    def places(self, heads: int) -> Tensor:
        """[tokens * heads] where the tokens go in the cache of a layer with so many heads."""
        if heads not in self._places:
            self._places[heads] = self.cache.places(self._slots, self._positions, heads)
        return self._places[heads]

    def _bucket(self, starts: _Numbers, lengths: _Numbers, slots: _Numbers, offsets: _Numbers) -> Bucket:
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
            run = -1
            padded = (offsets[:, None] + np.minimum(columns, lengths[:, None] - 1)).reshape(-1)
            real = (columns < lengths[:, None]).reshape(-1).nonzero()[0]
        low, high, seats = _block(slots)
        return Bucket(
            spans=spans,
            width=width,
            reach=reach,
            fresh=fresh,
            run=run,
            starts=self._tensor(starts),
            padded=self._tensor(padded),
            real=self._tensor(real),
            low=low,
            high=high,
            seats=None if seats is None else self._tensor(seats),
            slots=self._tensor(slots if high == 0 else nothing),
        )

    def _tensor(self, numbers: _Numbers) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


def _bucket_members(spans: Sequence[Span]) -> list[list[int]]:
    # Spans attend together when padding them to one length wastes little: single tokens, then by powers of
    # two, and those without a past apart, because they need no look into the cache.
    found: dict[tuple[int, bool], list[int]] = {}
    for index, span in enumerate(spans):
        found.setdefault(((span.tokens - 1).bit_length(), span.start == 0), []).append(index)
    return list(found.values())


def _block(slots: _Numbers) -> tuple[int, int, _Numbers | None]:
    """Return the block of slots to read in place, and where in it each span's slot is, if that is worth it.

    Attending to a few idle slots as well costs less than copying the busy ones together.
    """
    low, high = int(slots.min()), int(slots.max()) + 1
    if len(slots) == high - low and (slots == np.arange(low, high)).all():
        return low, high, None
    if 3 * len(slots) >= 2 * (high - low) and len(np.unique(slots)) == len(slots):
        return low, high, slots - low
    return 0, 0, None
