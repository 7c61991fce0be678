"""A linear layer of the model, with adapters that are added to its output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from backend.compute.quantized_weights import is_quantized

MOST_RANKS = 128
"""Total rank of combined adapters; beyond it, the products of foreign ranks cost more than separate calls."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Combined adapters of one layer: two products for all of them, regardless of their number.

    Each token is multiplied with all ranks, so it is meant for few: see `MOST_RANKS`.
    """

    down: Tensor
    """[in, ranks], all ranks together."""
    up: Tensor
    """[ranks, out], including the scaling."""
    foreign: Tensor
    """[tokens, ranks], True where the rank belongs to another token's adapter."""


class AdapterSite:
    """A linear layer of the model that can add several adapters' products to its output."""

    def __init__(self, module: nn.Module) -> None:
        self.transposed = isinstance(module, Conv1D)
        """GPT-2 stores its linear weights as [in, out]."""
        self.quantized = is_quantized(module)
        if isinstance(module, nn.Linear):  # whose weight may be packed
            self.wide, self.high = module.in_features, module.out_features
        else:
            self.wide, self.high = module.weight.shape  # type: ignore[misc] # a Conv1D
        self.per_row = False
        """Whether the layer only sees the positions whose logits are wanted, like an output head."""
        self.mixable = True
        """Whether the layer sees the packed tokens in order; an expert of a mixture does not."""
        self.mix: Mix | None = None
        """Combined adapters."""
        self.terms: list[tuple[slice, Tensor, Tensor]] = []
        """Adapters added one by one, each to its own part."""
        self._seen: torch.Size = torch.Size([0, 1])
        self._forward = module.forward
        module.forward = self.forward

    @property
    def seen_tokens(self) -> int:
        """Number of tokens in the last call of the layer's module."""
        return self._seen[:-1].numel()

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer, then each adapter to its own part."""
        outputs: Tensor = self._forward(inputs)
        self._seen = inputs.shape
        for part, down, up in self.terms:
            outputs[..., part, :] += (inputs[..., part, :] @ down) @ up
        if self.mix is not None:
            narrow = inputs.reshape(-1, inputs.shape[-1]) @ self.mix.down
            narrow.masked_fill_(self.mix.foreign, 0.0)
            outputs.view(-1, outputs.shape[-1]).addmm_(narrow, self.mix.up)
        return outputs
