"""A packed batch: the new tokens of many sequences as one row, and where each of them belongs.

Everything that all layers of one forward share is worked out here once: positions, places in the slot cache,
which sequences attend together, and their masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from backend.rollout.engines.slot_cache import SlotCache
from backend.same_rounding import QUERIES, filled_keys


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
        # Worked out by numpy: for a few hundred numbers its calls cost a tenth of torch's.
        starts = np.array([span.start for span in spans])
        lengths = np.array([span.tokens for span in spans])
        ends = lengths.cumsum()
        positions = np.repeat(starts - (ends - lengths), lengths) + np.arange(self.tokens)
        self.last_tokens = torch.from_numpy(ends - 1).to(device)
        """[spans] where in the packed row each span's last token stands."""
        slots = np.repeat(np.array([span.slot for span in spans]), lengths)
        self.slot_of_token = torch.from_numpy(slots).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        """[tokens] position of each token in its own sequence."""
        self._device = device
        self._places: dict[int, Tensor] = {}
        self.buckets = [self._bucket(spans, members) for members in _bucket_members(spans)]

    def places(self, heads: int) -> Tensor:
        """[tokens * heads] where the tokens go in the cache of a layer with so many heads."""
        if heads not in self._places:
            self._places[heads] = self.cache.places(self.slot_of_token, self.positions, heads)
        return self._places[heads]

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
            length=self.cache.length,
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
    length: int
    """Of a slot."""
    _masks: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def width(self) -> int:
        """New tokens of the longest span; on a CPU filled up, see `backend.same_rounding`."""
        widest = max(span.tokens for span in self.spans)
        if self.device.type != "cpu" or widest == 1:
            return widest
        # Without a past the new tokens are the keys.
        return filled_keys(widest) if self.fresh else max(QUERIES, widest)

    @cached_property
    def reach(self) -> int:
        """Keys that are read: those of the longest sequence, the new ones included; on a CPU filled up."""
        longest = max(span.end for span in self.spans)
        return min(filled_keys(longest), self.length) if self.device.type == "cpu" else longest

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
