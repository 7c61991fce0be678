"""Key-value memory in slots: one sequence per slot, the same tensors for the whole life of the engine.

Knows tensors only; which request sits in which slot is the slot table's affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """Numbers per token, keys and values together."""
        return self.heads * (self.key_dim + self.value_dim)


class SlotCache:
    """Keys and values of every layer as [slots, heads, length, dim].

    Positions past a sequence's end hold what an earlier sequence left there. Attention masks them, which is
    enough as long as they are finite: `clear` a slot whose sequence went wrong.
    """

    def __init__(self, *, slots: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self._layers: dict[int, LayerShape] = {}
        self._device = device
        self._dtype = dtype
        self.slots = slots
        self.length = length
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot; known after the first write."""
        return sum(shape.numbers for shape in self._layers.values()) * self._dtype.itemsize

    def places(self, slots: Tensor, positions: Tensor, heads: int) -> Tensor:
        """Return where tokens stand in a layer whose slots, heads and positions are one dimension.

        Args:
            slots: [tokens] where each token is.
            positions: [tokens] its position in the slot.
            heads: Of the layer.

        Returns:
            [tokens * heads]
        """
        each = torch.arange(heads, device=self._device)
        return ((slots[:, None] * heads + each) * self.length + positions[:, None]).flatten()

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Store new tokens of one layer.

        Args:
            layer: The layer's index; memory for it is taken at its first write.
            places: [tokens * heads] where they go, see `places`.
            key: [heads, tokens, key dim].
            value: [heads, tokens, value dim].
        """
        if layer not in self._layers:
            shape = LayerShape(key.shape[0], key.shape[-1], value.shape[-1])
            self._layers[layer] = shape
            self.keys[layer] = self._zeros(shape.heads, shape.key_dim)
            self.values[layer] = self._zeros(shape.heads, shape.value_dim)
        for store, new in ((self.keys[layer], key), (self.values[layer], value)):
            width = store.shape[-1]
            store.view(-1, width).index_copy_(0, places, new.transpose(0, 1).reshape(-1, width))

    def resize(self, *, slots: int, length: int, keep: Mapping[int, int]) -> None:
        """Change the number or the length of the slots.

        Args:
            slots: How many there are afterwards.
            length: Tokens that each holds afterwards.
            keep: Slots whose contents stay: new index by old index.
        """
        common = min(length, self.length)
        self.slots, self.length = slots, length
        old = torch.tensor(list(keep.keys()), dtype=torch.long, device=self._device)
        new = torch.tensor(list(keep.values()), dtype=torch.long, device=self._device)
        for layer, shape in self._layers.items():
            for store, dim in ((self.keys, shape.key_dim), (self.values, shape.value_dim)):
                grown = self._zeros(shape.heads, dim)
                if keep:
                    grown[new, :, :common] = store[layer][old, :, :common]
                store[layer] = grown

    def copy(self, source: int, targets: Sequence[int], tokens: int) -> None:
        """Give each target slot the first `tokens` positions of the source slot."""
        index = torch.tensor(targets, dtype=torch.long, device=self._device)
        for store in (*self.keys.values(), *self.values.values()):
            store[index, :, :tokens] = store[source, :, :tokens]

    def copy_spans(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Give each target slot the positions [start, start + length) of its source slot."""
        counts = np.array(lengths)
        ends = counts.cumsum()
        positions = np.repeat(np.array(starts) - (ends - counts), counts) + np.arange(ends[-1])
        rows = [np.repeat(np.array(slots), counts) for slots in (sources, targets)]
        at, source, target = (torch.from_numpy(x).to(self._device) for x in (positions, *rows))
        for heads in {shape.heads for shape in self._layers.values()}:
            places = self.places(source, at, heads), self.places(target, at, heads)
            for layer, shape in self._layers.items():
                if shape.heads == heads:
                    for store in (self.keys[layer], self.values[layer]):
                        flat = store.view(-1, store.shape[-1])
                        flat.index_copy_(0, places[1], flat.index_select(0, places[0]))

    def clear(self, slot: int) -> None:
        """Fill a slot with zeros."""
        for store in (*self.keys.values(), *self.values.values()):
            store[slot] = 0

    def _zeros(self, heads: int, dim: int) -> Tensor:
        return torch.zeros(self.slots, heads, self.length, dim, device=self._device, dtype=self._dtype)
