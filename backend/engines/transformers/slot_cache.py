"""Key-value cache in slots: one sequence per slot, in the same tensors for the engine's lifetime.

It only handles tensors; the slot table tracks which request is in which slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Numbers = NDArray[np.int64]


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

    Positions past a sequence's end contain data of an earlier sequence. Attention masks them, which suffices
    as long as they are finite: `clear` a slot after a failure.
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
        """Memory per position of a slot; known after the first forward."""
        return sum(shape.numbers for shape in self._layers.values()) * self._dtype.itemsize

    def places(self, slots: _Numbers, positions: _Numbers, heads: int) -> _Numbers:
        """Return the indices of tokens in a layer whose slots, heads and positions are flattened.

        Args:
            slots: [tokens] each token's slot.
            positions: [tokens] each token's position in the slot.
            heads: Number of heads of the layer.

        Returns:
            [tokens * heads]
        """
        places = (slots[:, None] * heads + np.arange(heads)) * self.length + positions[:, None]
        return places.reshape(-1)

    def layer(self, layer: int, *, heads: int, key_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of one layer; their memory is allocated on first use.

        Args:
            layer: Its index.
            heads: Number of key-value heads.
            key_dim: Size of a key.
            value_dim: Size of a value.

        Returns:
            [slots, heads, length, key dim] and [slots, heads, length, value dim], to be modified in place.
        """
        if layer not in self._layers:
            self._layers[layer] = LayerShape(heads, key_dim, value_dim)
            self.keys[layer] = self._zeros(heads, key_dim)
            self.values[layer] = self._zeros(heads, value_dim)
        return self.keys[layer], self.values[layer]

    def resize(self, *, slots: int, length: int, keep: Mapping[int, int]) -> None:
        """Change the number or length of the slots.

        Args:
            slots: New number of slots.
            length: New length in tokens.
            keep: Slots whose contents are kept: new index by old index.
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
        """Copy the first `tokens` positions of the source slot to each target slot."""
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
        """Copy the positions [start, start + length) of each source slot to its target slot."""
        counts = np.array(lengths)
        ends = counts.cumsum()
        positions = np.repeat(np.array(starts) - (ends - counts), counts) + np.arange(ends[-1])  # [tokens]
        source, target = (np.repeat(np.array(slots), counts) for slots in (sources, targets))
        for heads in {shape.heads for shape in self._layers.values()}:
            places = [
                torch.from_numpy(self.places(slots, positions, heads)).to(self._device)
                for slots in (source, target)
            ]
            for layer, shape in self._layers.items():
                if shape.heads == heads:
                    for store in (self.keys[layer], self.values[layer]):
                        flat = store.view(-1, store.shape[-1])  # [slots * heads * length, dim]
                        flat.index_copy_(0, places[1], flat.index_select(0, places[0]))

    def clear(self, slot: int) -> None:
        """Fill a slot with zeros."""
        for store in (*self.keys.values(), *self.values.values()):
            store[slot] = 0

    def _zeros(self, heads: int, dim: int) -> Tensor:
        return torch.zeros(self.slots, heads, self.length, dim, device=self._device, dtype=self._dtype)
